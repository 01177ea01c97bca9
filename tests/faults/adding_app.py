"""A driver that adds 1 to every column until it is told to stop, and says what it came to.

    python adding_app.py replicas|checkpoint FOLDER LOST_AFTER_S

It prints the number of each addition; once there is a file FOLDER/enough, the distinct values and the servers that were
replaced.
"""

import sys
from pathlib import Path

import numpy as np

from ps2 import DCV, PS2Conf, PS2Context

DIM = 1000


def context(spare, folder, lost_after_s):
    fast = PS2Conf(heartbeatS=lost_after_s / 5, lostAfterS=lost_after_s)
    if spare == "replicas":
        return PS2Context.getOrCreate(servers=2, replicas=1, conf=fast)
    return PS2Context.getOrCreate(servers=2, checkpointDir=f"{folder}/checkpoints", conf=fast)


if __name__ == "__main__":
    spare, folder, lost_after_s = sys.argv[1:]
    with context(spare, folder, float(lost_after_s)) as ps:
        total = DCV.dense(DIM, dtype="int64")
        if spare == "checkpoint":
            ps.checkpoint()
        count = 0
        while not Path(folder, "enough").exists():
            count += 1
            total.add(np.ones(DIM, np.int64), wait=count % 3 > 0)
            print(count, flush=True)
        ps.flush()
        replaced = [index for recovery in ps.recoveries for index in recovery.servers]
        print("end", np.unique(total.pull()).tolist(), replaced, flush=True)
