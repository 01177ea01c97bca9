"""What Spark recorded of a training: the driver's and the executors' logs, the event log, and samples of stacks."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import click
import numpy as np

# Times are milliseconds of the machine's clock, which driver, executors and event log share.
LOGGING = """rootLogger.level = info
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = ${sys:benchmark.log}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{UNIX_MILLIS} %c{1}: %m%n
"""
PARTS = ("broadcast", "gradient", "aggregation", "update", "scheduling")
OF_MLLIB = "GradientDescent.scala"
LINE = re.compile(r"(\d+) (\S+): (.*)")
STORED = re.compile(r"Block broadcast_(\d+) stored as values")
CREATED = re.compile(rf"Created broadcast (\d+) from broadcast at {OF_MLLIB}")
STARTED, FINISHED = f"Starting job: treeAggregate at {OF_MLLIB}", f"finished: treeAggregate at {OF_MLLIB}"
READ = re.compile(r"Reading broadcast variable (\d+) took (\d+) ms")
# Of JFR: the threads of tasks are named when they start, so the clock tells which task they ran.
TASKS = "Executor task launch worker"
# Digits of a second of which Python reads six.
FRACTION = re.compile(r"\.(\d{1,6})\d*")
# Of a task's stack: it makes a sum ready for others, or moves it.
MOVES = ("Serializ", "ObjectOutput", "ObjectInput", "org.apache.spark.shuffle", "LZ4", "BlockManager", "ExternalSorter")


@dataclass
class _Step:
    """One step, in milliseconds.

    Attributes:
        broadcast: number of the model's broadcast variable.
        stored, created: when the driver stored the model, and when it had cut it to blocks.
        started, finished: of the job that sums the gradients.
        updated: when the next model was stored.
    """

    broadcast: int
    stored: int
    created: int
    started: int = 0
    finished: int = 0
    updated: int = 0


@dataclass
class _Stage:
    """A stage of the event log, in milliseconds.

    Attributes:
        number: Spark's.
        submitted: when.
        launched: of its first task.
        deserialized: what the slowest task took to get its code.
        run: what the slowest task took after it.
        spans: by executor, when its tasks were launched and had finished.
    """

    number: int
    submitted: int
    launched: list[int] = field(default_factory=list)
    deserialized: list[int] = field(default_factory=list)
    run: list[int] = field(default_factory=list)
    spans: dict[str, list[tuple[int, int]]] = field(default_factory=dict)


class Records:
    """Reads the files of a training that has ended."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def step(self) -> dict[str, float]:
        """Return the median seconds of each part of a step; the first quarter of the steps, and the last, do not count.

        ``scheduling`` is what stages take before their tasks have their code; ``aggregation`` has the driver's work
        between the broadcast and the job, too, which prepares the sums.
        """
        parts = [[part[name] for name in PARTS] for part in map(self._parts, self._counted)]
        return dict(zip(PARTS, (np.median(np.array(parts), axis=0) / 1e3).tolist(), strict=True))

    def _parts(self, step: _Step) -> dict[str, float]:
        stages = self._of(step)
        fetched = max(self._read.get(step.broadcast, [0]))
        scheduling = sum(min(stage.launched) - stage.submitted + max(stage.deserialized) for stage in stages)
        gradient = self._share_of_gradient * max(0, max(stages[0].run) - fetched)
        broadcast = step.created - step.stored + fetched
        update = step.updated - step.finished
        total = step.updated - step.stored
        aggregation = total - broadcast - update - scheduling - gradient
        return {
            "broadcast": broadcast,
            "gradient": gradient,
            "aggregation": aggregation,
            "update": update,
            "scheduling": scheduling,
        }

    @cached_property
    def _counted(self) -> list[_Step]:
        steps = [step for step in self._steps if step.updated]
        return steps[max(1, len(steps) // 4) :]

    def _of(self, step: _Step) -> list[_Stage]:
        """Return the stages of a step: gradients are computed in the first."""
        return [stage for stage in self._stages if step.started <= stage.submitted <= step.finished]

    @cached_property
    def _steps(self) -> list[_Step]:
        stored: dict[int, int] = {}
        steps: list[_Step] = []
        for at, text in _lines(self._folder / "driver.log"):
            if found := STORED.match(text):
                stored[int(found[1])] = at
            elif found := CREATED.match(text):
                number = int(found[1])
                if steps:
                    steps[-1].updated = stored[number]
                steps.append(_Step(number, stored[number], at))
            elif steps and text.startswith(STARTED):
                steps[-1].started = at
            elif steps and FINISHED in text:
                steps[-1].finished = at
        if len(steps) < 3:
            raise click.ClickException(f"driver.log: expected steps of {OF_MLLIB}, found {len(steps)}")
        return steps

    @cached_property
    def _read(self) -> dict[int, list[int]]:
        """What executors took to read each broadcast variable."""
        found: dict[int, list[int]] = {}
        for log in self._folder.glob("executor-*.log"):
            for _, text in _lines(log):
                if told := READ.search(text):
                    found.setdefault(int(told[1]), []).append(int(told[2]))
        return found

    @cached_property
    def _stages(self) -> list[_Stage]:
        stages: dict[int, _Stage] = {}
        tasks: list[dict[str, Any]] = []
        (log,) = (self._folder / "events").iterdir()
        with log.open() as lines:
            for line in lines:
                event = json.loads(line)
                if event["Event"] == "SparkListenerStageCompleted":
                    about = event["Stage Info"]
                    if about["Stage Name"].startswith(f"treeAggregate at {OF_MLLIB}"):
                        stages[about["Stage ID"]] = _Stage(about["Stage ID"], about["Submission Time"])
                elif event["Event"] == "SparkListenerTaskEnd":
                    tasks.append(event)
        for task in tasks:
            if (stage := stages.get(task["Stage ID"])) is not None:
                about = task["Task Info"]
                stage.launched.append(about["Launch Time"])
                span = (about["Launch Time"], about["Finish Time"])
                stage.spans.setdefault(about["Executor ID"], []).append(span)
                stage.deserialized.append(task["Task Metrics"]["Executor Deserialize Time"])
                stage.run.append(task["Task Metrics"]["Executor Run Time"])
        return sorted(stages.values(), key=lambda stage: stage.submitted)

    @cached_property
    def _share_of_gradient(self) -> float:
        """Share of the samples of gradient tasks in which they neither write nor read sums."""
        counts = [0, 0]
        gradients = [self._of(step)[0] for step in self._counted]
        for recording in self._folder.glob("*.jfr"):
            spans = [span for stage in gradients for span in stage.spans.get(recording.stem, [])]
            for at, frames in _samples(recording):
                if "TorrentBroadcast" not in frames and any(first <= at <= last for first, last in spans):
                    counts[any(word in frames for word in MOVES)] += 1
        if not sum(counts):
            raise click.ClickException("no samples of the executors' stacks")
        return counts[0] / sum(counts)


def _lines(log: Path) -> Iterator[tuple[int, str]]:
    with log.open() as lines:
        for line in lines:
            if found := LINE.match(line):
                yield int(found[1]), found[3]


def _samples(recording: Path) -> Iterator[tuple[int, str]]:
    """Yield the time of each sample of a task's thread, and its stack as text."""
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home) / "bin" / "jfr") if home else shutil.which("jfr")
    if program is None:
        raise click.ClickException("there is no jfr, which prints samples of stacks: set JAVA_HOME to a JDK")
    events = "jdk.ExecutionSample,jdk.NativeMethodSample"
    command = [program, "print", "--json", "--stack-depth", "64", "--events", events, str(recording)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    for event in json.loads(done.stdout)["recording"]["events"]:
        values = event["values"]
        thread, trace = values["sampledThread"], values["stackTrace"]
        if thread is not None and trace is not None and (thread["javaName"] or "").startswith(TASKS):
            frames = (f"{one['method']['type']['name']}.{one['method']['name']}" for one in trace["frames"])
            at = datetime.fromisoformat(FRACTION.sub(r".\1", values["startTime"])).timestamp()
            yield round(1e3 * at), " ".join(frames).replace("/", ".")
