"""Ids folded into tables of 2^10 to 2^20 slots against a table without collisions: AUC, as in Monolith's Figure 5.

    python -m benchmarks.collisions --data-dir FOLDER --plots docs/images

docs/performance/online.md says what is measured and how to read it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import click
import numpy as np

from benchmarks.collisions_data import FRAPPE, MOVIELENS, IdRows, frappe, generated, movielens
from benchmarks.compared import Parts, print_report
from benchmarks.frame import Check, Part, command, exit_code, machine, publish, tell
from benchmarks.local_spark import start_spark
from ps2 import PS2Context
from ps2.algorithms.online.program import OnlineProgram
from ps2.algorithms.online.settings import OnlineSettings
from ps2.algorithms.training.streams.labelled_rows import LabelledRows
from ps2.algorithms.training.streams.progressive import Progressive, tally_of
from ps2.matrix.partition import hash_bucket
from ps2.plot_extra import needs_matplotlib

READERS = {"movielens": movielens, "frappe": frappe, "generated": generated}
PARTS = Parts(names=tuple(READERS), generated=("generated",))
FACTORS, BATCH = 16, 1024
# Passes that find the best model of each data set, of which the best pass counts.
EPOCHS = {"movielens": 4, "frappe": 8, "generated": 5}
RATES = {"movielens": 0.1, "frappe": 0.1, "generated": 0.1}
NO_COLLISIONS = "none"
NO_WEIGHTS = np.empty(0, np.float32)
# How much a table with collisions may be better than the one without: seeds differ as much.
NOISE = 0.002


@command(
    *PARTS.options(f"{MOVIELENS}, {' and '.join(FRAPPE)}"),
    click.option("--bits", type=click.IntRange(1, 40), multiple=True, default=(10, 11, 12, 13, 14, 16, 18, 20)),
    click.option("--rounds", type=click.IntRange(1), default=1, help="Seeds that the means are of."),
    click.option("--plots", type=click.Path(path_type=Path), metavar="DIR", help="Draw collisions.png there."),
)
def main(
    parts: tuple[str, ...],
    data_dir: str | None,
    bits: tuple[int, ...],
    rounds: int,
    plots: Path | None,
    form: str,
    output: Path | None,
) -> None:
    """Train a factorization machine on an EmbeddingTable, whose keys collide or do not."""
    chosen = PARTS.chosen(parts, data_dir)
    spark = start_spark("local[1]", "benchmarks.collisions", {})
    try:
        with PS2Context.getOrCreate(spark, servers=1):
            found = {name: _measured(name, READERS[name](data_dir or ""), bits, rounds) for name in chosen}
    finally:
        spark.stop()
    report: dict[str, Any] = {
        "machine": machine(),
        "rounds": rounds,
        "parts": {name: part.as_json() for name, part in found.items()},
    }
    if plots is not None:
        plot(report["parts"], plots / "collisions.png")
    publish(report, form, output, lambda: print_report(report))
    sys.exit(exit_code(report, strict=False))


def _measured(name: str, data: tuple[IdRows, IdRows], bits: Sequence[int], rounds: int) -> Part:
    train, test = data
    ids = len(np.unique(train.keys))
    aucs: dict[str, list[float]] = {}
    sizes = []
    for slots in (*(1 << bit for bit in bits), None):
        way = NO_COLLISIONS if slots is None else str(slots)
        by_pass = [_aucs(name, train, test, slots, seed) for seed in range(rounds)]
        alone = _alone(train, slots)
        aucs[way] = [max(found) for found in by_pass]
        tell(f"{name}, {way}: {' '.join(f'{auc:.4f}' for auc in by_pass[0])}")
        sizes.append(
            {
                "data": name,
                "slots": "no collisions" if slots is None else f"2^{slots.bit_length() - 1}",
                "ids that share one": f"{1 - alone / ids:.1%}",
                "AUC": f"{mean(aucs[way]):.4f}",
                "by pass": " ".join(f"{auc:.4f}" for auc in by_pass[0]),
            }
        )
    best = max(mean(found) for way, found in aucs.items() if way != NO_COLLISIONS)
    checks = [
        Check(
            f"{name}: AUC of the best table with collisions less that without", best - mean(aucs[NO_COLLISIONS]), NOISE
        )
    ]
    curve = {way: [aucs[way]] for way in aucs}
    facts = {"ids": f"{ids:,}", "rows": f"{len(train):,}", "to test": f"{len(test):,}", "factors": FACTORS}
    return Part(checks=checks, facts=facts, sizes=sizes, curves={"AUC": curve})


def _alone(rows: IdRows, slots: int | None) -> int:
    """Return how many ids have a slot of their own."""
    keys = np.unique(rows.keys)
    if slots is None:
        return len(keys)
    _, counts = np.unique(hash_bucket(keys) >> np.int64(32 - slots.bit_length() + 1), return_counts=True)
    return int((counts == 1).sum())


def _aucs(name: str, train: IdRows, test: IdRows, slots: int | None, seed: int) -> list[float]:
    """Train, and return the AUC of the rows to test after each pass."""
    settings = OnlineSettings(
        factors=FACTORS,
        optimizer="adagrad",
        lr=RATES[name],
        local_steps=False,
        intercept=False,
        init_scale=0.05,
        seed=seed,
        key_arguments={} if slots is None else {"hashBits": slots.bit_length() - 1},
    )
    program = OnlineProgram(settings, settings.new_table())
    rng = np.random.default_rng(seed)
    tested, labels = test.take(np.arange(len(test)))
    found = []
    for _ in range(EPOCHS[name]):
        order = rng.permutation(len(train))
        for begin in range(0, len(train), BATCH):
            program.learn(LabelledRows(*train.take(order[begin : begin + BATCH])))
        program.table.flush()
        found.append(Progressive.of(tally_of(program.margins(tested), labels, NO_WEIGHTS)).auc)
    program.table.free()
    return found


def plot(parts: Mapping[str, Any], path: Path) -> None:
    """Plot AUC by the table's size, a data set beside the other.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    with needs_matplotlib("--plots"):
        from matplotlib.figure import Figure
    figure = Figure(figsize=(5 * len(parts), 3.8), layout="constrained")
    for axes, (name, part) in zip(figure.subplots(1, len(parts), squeeze=False)[0], parts.items(), strict=True):
        aucs = {way: mean(found[0]) for way, found in part["curves"]["AUC"].items()}
        without = aucs.pop(NO_COLLISIONS)
        axes.axhline(without, color="C0", label=f"no collisions: {without:.4f}")
        axes.plot([int(way) for way in aucs], list(aucs.values()), color="C3", marker="o", label="ids hashed to slots")
        axes.set_xscale("log", base=2)
        axes.set_xlabel("slots of the table")
        axes.set_ylabel("AUC of rows to test")
        axes.set_title(f"{name}: {part['facts']['ids']} ids", fontsize=10)
        axes.grid(alpha=0.3)
        axes.legend(loc="lower right", fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
