"""A driver to be killed or stopped: trains in steps, and says which step it has done.

    python driver_app.py local CHECKPOINTS       its own fleet; a checkpoint every two steps
    python driver_app.py HOST:PORT,... TOKENFILE  a fleet that something else runs

It prints a line after each step, and the name of the error that ends it.
"""

import sys
import time

import numpy as np

from ps2 import DCV, PS2Context
from ps2.errors import PS2Error

DIM, STEPS, PAUSE_S = 1000, 40, 0.2


def context(fleet, path):
    if fleet == "local":
        return PS2Context.getOrCreate(servers=2, checkpointDir=path, checkpointEverySteps=2)
    return PS2Context.getOrCreate(fleet=fleet, tokenFile=path)


def train(ps, weight):
    """Do the steps that are left."""
    while ps.nextStep < STEPS:
        with ps.step() as step:
            weight.mul(0.5)
            weight.add(np.full(DIM, float(step)))
        print(step, flush=True)
        time.sleep(PAUSE_S)


def undisturbed(steps=STEPS):
    """What the weights come to after so many steps."""
    value = 0.0
    for step in range(steps):
        value = 0.5 * value + step
    return value


if __name__ == "__main__":
    ps = context(*sys.argv[1:])
    print("driver", flush=True)
    try:
        train(ps, DCV.dense(DIM, dtype="float64", name="weight"))
    except PS2Error as error:
        print(type(error).__name__, flush=True)
