"""The inner product of two vectors, both ways: Figure 4 of the PS2 paper.

python examples/dot.py
"""

import warnings

import numpy as np

from ps2 import DCV, NotColocatedWarning, PS2Context

dimension = 1_000_000

with PS2Context.getOrCreate(servers=2):
    # The inefficient way: two vectors, cut differently. The answer is right, but the data travel, and PS2 says so.
    v1 = DCV.dense(dimension).push(np.full(dimension, 2.0))
    v2 = DCV.dense(dimension, partitionsPerServer=2).push(np.full(dimension, 3.0))
    with warnings.catch_warnings(record=True, category=NotColocatedWarning) as caught:
        warnings.simplefilter("always")
        dot1 = v1.dot(v2)
    print(f"not co-located: {dot1:.0f}")
    print(f"  {caught[0].message}")

    # The right way: derive the second from the first. Only one number a server travels.
    v3 = DCV.derive(v1).push(np.full(dimension, 3.0))
    dot2 = v1.dot(v3)
    print(f"co-located:     {dot2:.0f}")
