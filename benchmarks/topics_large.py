"""A generated corpus: memory of everybody together, and tokens a second beside KOS with as many topics."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from statistics import median

import psutil

from benchmarks import topics_data
from benchmarks.frame import Check, Part, answer, tell
from benchmarks.ml_part import Line
from benchmarks.topics_fit import SAMPLING, fit
from benchmarks.topics_part import WORKERS, Asked, spark_and_servers

TOPICS, WORDS, LENGTH = 1000, 200_000, 100
ITERATIONS, OF_KOS = 5, 30
MEMORY_GB = 16.0
GOAL = 0.7
POLL_S = 1.0


def measure(asked: Asked) -> Part:
    """Passes over KOS first; then over the corpus that is generated, while memory is watched."""
    kos = topics_data.kos(asked.data_dir)
    with spark_and_servers(asked, "large") as spark, most_memory() as most:
        model, _ = fit(topics_data.framed(spark, kos, WORKERS), TOPICS, OF_KOS, SAMPLING)
        # From the same iterations on: the later ones are faster, as documents have fewer topics.
        of_kos = median(model.summary.history.seconds[:ITERATIONS]) / kos.data.sum()
        frame = topics_data.generated(spark, asked.tokens, WORDS, LENGTH, WORKERS)
        model, seconds = fit(frame, TOPICS, ITERATIONS, SAMPLING)
        tell(f"{asked.tokens:,} tokens: {seconds:.1f} s, of which iterations {model.summary.history.seconds}")
        of_large = median(model.summary.history.seconds) / asked.tokens
    line = Line(f"K={TOPICS}: microseconds a token", "KOS", "us", GOAL, [of_kos * 1e6], [of_large * 1e6])
    facts = {"tokens": f"{asked.tokens:,}", "words": f"{WORDS:,}", "topics": TOPICS, "fit s": f"{seconds:.1f}"}
    return Part([line], [Check("GB of memory, all processes together", most[0] / 1e9, MEMORY_GB)], facts=facts)


@contextmanager
def most_memory() -> Iterator[list[int]]:
    """Yield the most bytes that this process and all below it have had; what they share counts once."""
    most, over = [0], threading.Event()

    def watch() -> None:
        while not over.wait(POLL_S):
            of_all = 0
            for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
                with suppress(psutil.NoSuchProcess):
                    of_all += process.memory_full_info().pss
            most[0] = max(most[0], of_all)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield most
    finally:
        over.set()
        watcher.join()


if __name__ == "__main__":
    answer(Asked, measure)
