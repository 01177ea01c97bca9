"""Clicks that are learned while they come: ids come and go, tastes change, and a scorer follows some seconds behind.

python examples/online_clicks.py [--days N] [--rows N] [--ids N] [--out FOLDER]

A thread writes a generated click log, one file an hour of a simulated day. A Spark stream learns from the files on the
servers, each row once. Every few hours the changed weights are exported, and a Scorer, which needs neither Spark nor
servers, takes them. Before an hour's rows can be learned, they are scored three times: by the model itself (progressive
validation), by that Scorer, and by a Scorer of the weights of the last midnight, as a daily batch would serve them.
"""

import argparse
import shutil
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from generated_clicks import IDS, LABEL, NUMBERS, PROBABILITY, ClickLog
from matplotlib.figure import Figure
from scipy.stats import rankdata

from ps2 import PS2Context
from ps2.algorithms import OnlineLogisticRegression
from ps2.run.spark.session import get_or_create_session
from ps2.serving import Scorer

HOURS = 24
AHEAD = 2  # hours that may wait to be learned
EXPORT_HOURS = 3
WINDOW = 6  # hours that a point of the plot is of
MODEL, SCORER, DAILY, TRUTH = "online", "exports", "midnight", "truth"

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--days", type=int, default=4)
parser.add_argument("--rows", type=int, default=240_000, help="a day")
parser.add_argument("--ids", type=int, default=300_000, help="distinct ids at a time")
parser.add_argument("--expire", type=float, default=60.0, help="seconds after which an id that did not come goes")
parser.add_argument("--out", type=Path, default=Path("out/online_clicks"))
asked = parser.parse_args()

shutil.rmtree(asked.out, ignore_errors=True)
incoming, ready = asked.out / "incoming", asked.out / "generated"
incoming.mkdir(parents=True)
hour_rows = asked.rows // HOURS
clicks = ClickLog(ids=asked.ids, block=hour_rows)

# By way and hour: the scores of its rows; the model's own AUC comes from its progress.
labels, scores = [], {SCORER: [], DAILY: [], TRUTH: []}
progress = []
stopped, advanced = threading.Event(), threading.Condition()


def auc(clicked, scored):
    """Area under the ROC curve: how often a click has a higher score than no click."""
    positive = clicked > 0
    ranks, count = rankdata(scored)[positive], int(positive.sum())
    return (ranks.sum() - count * (count + 1) / 2) / (count * (len(clicked) - count))


def publish():
    """Write the log hour by hour; score each hour's rows before the stream sees them."""
    for day in range(asked.days):
        for hour, path in enumerate(clicks.write(ready, day, hour_rows * HOURS, files=HOURS)):
            with advanced:
                advanced.wait_for(lambda: len(labels) < len(progress) + AHEAD or stopped.is_set())
            if stopped.is_set():
                return
            rows = pq.ParquetFile(path).read().combine_chunks().to_batches()[0]
            labels.append(rows[LABEL].to_numpy())
            scores[TRUTH].append(rows[PROBABILITY].to_numpy())
            for way, scorer in scorers.items():
                scores[way].append(scorer.score(rows))
            path.rename(incoming / f"day{day}-{hour:02d}.parquet")


def say(text):
    """Keep one live line on a terminal; elsewhere print some lines."""
    if sys.stdout.isatty():
        width = shutil.get_terminal_size().columns - 1
        print(f"\r{text[:width]:{width}}", end="", flush=True)
    elif not len(progress) % WINDOW:
        print(text, flush=True)


def report(batch):
    """After each hour, in a thread of the stream."""
    with advanced:
        progress.append(batch)
        advanced.notify_all()


def hours_after(seen):
    """Wait for another hour, a second at most; return how many are learned."""
    with advanced:
        advanced.wait_for(lambda: len(progress) > seen, timeout=1.0)
    return len(progress)


def line():
    """What is known now. A narrow terminal cuts the end off."""
    hours, status = len(progress), model.table.matrix.keyStatus()
    aucs = {way: auc(labels[hours - 1], scores[way][hours - 1]) for way in (SCORER, DAILY)}
    messages = ", ".join(f"{way} {value:.3f}" for way, value in {MODEL: progress[-1].validation.auc, **aucs}.items())
    keys = f"{status.active:,} keys, {status.expired:,} expired"
    more = f"{status.waiting:,} waiting  {progress[-1].total.rows:,} rows"
    day, hour = divmod(hours - 1, HOURS)
    rate, export = progress[-1].rowsPerS, scorers[SCORER].number
    return f"day {day} {hour:02d}:00  AUC {messages}  {rate:,.0f} rows/s  {keys}  export {export}  {more}"


spark = get_or_create_session("local[2]", "online_clicks")
ps = PS2Context.getOrCreate(spark, servers=1)
estimator = OnlineLogisticRegression(
    categoricalCols=list(IDS), bucketCols=list(NUMBERS), alpha=0.05, admitAfter=2, expireAfterS=asked.expire
)
schema = spark.read.parquet(str(clicks.write(ready, 0, hour_rows)[0])).schema
stream = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(incoming))
training = estimator.fitStream(stream, str(asked.out / "checkpoint"), snapshotEvery="30 seconds", onProgress=report)
model = training.model
for way in (SCORER, DAILY):
    model.export(str(asked.out / way))
scorers = {way: Scorer(str(asked.out / way)) for way in (SCORER, DAILY)}
publisher = threading.Thread(target=publish)
publisher.start()
began_s, hours, exported = time.monotonic(), 0, 0
try:
    while len(progress) < asked.days * HOURS and training.isActive:
        seen, hours = hours, hours_after(hours)
        if hours // EXPORT_HOURS > exported:
            exported = hours // EXPORT_HOURS
            model.export(str(asked.out / SCORER), since="last")
            scorers[SCORER].refresh()
        if hours // HOURS > seen // HOURS:
            model.export(str(asked.out / DAILY), since="last")
            scorers[DAILY].refresh()
        if hours > seen:
            say(line())
finally:
    stopped.set()
    with advanced:
        advanced.notify_all()
    publisher.join()
    training.stop()
taken_s = time.monotonic() - began_s
print("\n" * sys.stdout.isatty() + f"{asked.days * HOURS * hour_rows:,} rows in {taken_s:.0f} s, {exported} exports")

# -- the picture: AUC of some hours together ---------------------------------------------------------------------------

# The first day has no yesterday, and the hours that follow it were scored before its weights came.
points = range(HOURS + WINDOW, len(labels) - WINDOW + 1, WINDOW)
curves = {
    way: [auc(np.concatenate(labels[at : at + WINDOW]), np.concatenate(scores[way][at : at + WINDOW])) for at in points]
    for way in scores
}
curves[MODEL] = [np.mean([batch.validation.auc for batch in progress[at : at + WINDOW]]) for at in points]
figure = Figure(figsize=(8, 4), layout="constrained")
axes = figure.subplots()
names = {MODEL: "online, before each row is learned", SCORER: f"a scorer, exports every {EXPORT_HOURS} h"}
names |= {DAILY: "weights of the last midnight"}
for way, name in names.items():
    label = f"{name}: {np.mean(curves[way]):.4f}"
    axes.plot([(at + WINDOW / 2) / HOURS for at in points], curves[way], marker=".", label=label)
axes.set_xlabel("day")
axes.set_ylabel(f"AUC of {WINDOW} hours")
axes.legend(fontsize=8)
axes.grid(alpha=0.3)
figure.savefig(asked.out / "auc.png", dpi=110)
for way in (MODEL, SCORER, DAILY, TRUTH):
    print(f"{way:10s} mean AUC from the second day at 6:00 on: {np.mean(curves[way]):.4f}")
print(f"picture: {asked.out / 'auc.png'}")
ps.stop()
spark.stop()
