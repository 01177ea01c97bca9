"""Ids folded into tables of 2^10 to 2^20 slots against a table without collisions: AUC, as in Monolith's Figure 5.

docs/performance/online.md says how to read it.
"""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import numpy as np
import numpy.typing as npt

from benchmarks import frame
from benchmarks.frame import Benchmark, Check, Part, option, tell
from benchmarks.local_spark import spark_and_servers
from ps2.algorithms.online.plan import OnlinePlan
from ps2.algorithms.online.program import OnlineProgram
from ps2.algorithms.training.streams.labelled_rows import LabelledRows
from ps2.algorithms.training.streams.progressive import Progressive, tally_of
from ps2.data.key_rows import KeyRows
from ps2.matrix.partition import hash_bucket

FACTORS, BATCH = 16, 1024
RATE, NO_WEIGHTS = 0.1, np.empty(0, np.float32)
# How much a table with collisions may be better than the one without: seeds differ as much.
NOISE = 0.002
MOVIELENS = "ml-1m.ratings.txt.gz"
FRAPPE = ("frappe.validation.libfm", "frappe.test.libfm")
# A rating of so much is a click.
LIKED = 4
TESTED = 0.1
# Generated rows: fields of different sizes, whose ids have vectors as a factorization machine's.
SIZES, GENERATED_FACTORS, ROWS = (40_000, 20_000, 8_000, 1_000, 100), 4, 400_000


@dataclass(frozen=True)
class Args(frame.Args):
    rounds: int = option(1, "Seeds that the means are of.", least=1)
    bits: tuple[int, ...] = option((10, 11, 12, 13, 14, 16, 18, 20), "Bits of a slot's number.", least=1)


def movielens(args: Args) -> Part:
    """Compare tables on MovieLens 1M; the best of four passes counts."""
    return _compared(args, _movielens(args.data_dir), epochs=4)


def frappe(args: Args) -> Part:
    """Compare tables on frappe; the best of eight passes counts."""
    train, test = (_libfm(Path(args.data_dir) / name) for name in FRAPPE)
    return _compared(args, (train, test), epochs=8)


def generated(args: Args) -> Part:
    """Compare tables on generated rows; the best of five passes counts."""
    return _compared(args, _generated(), epochs=5)


@dataclass(frozen=True)
class IdRows:
    """Rows of ids.

    Attributes:
        keys: int64, shape (n, fields): a field's ids differ from those of all other fields.
        labels: float32 of shape (n,), 0 or 1.
    """

    keys: npt.NDArray[np.int64]
    labels: npt.NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: npt.NDArray[np.int64]) -> tuple[KeyRows, npt.NDArray[np.float32]]:
        """Return some rows."""
        keys = self.keys[rows]
        n, fields = keys.shape
        numbers = np.tile(np.arange(fields, dtype=np.int32), n)
        indptr = np.arange(n + 1, dtype=np.int64) * fields
        return KeyRows(indptr, keys.reshape(-1), np.ones(n * fields, np.float32), numbers, fields), self.labels[rows]

    @staticmethod
    def of(ids: npt.NDArray[np.int64], labels: npt.NDArray[np.float32]) -> IdRows:
        """Make keys of ids: the field's number, and the id."""
        return IdRows(ids + (np.arange(ids.shape[1]) << 40), labels)


def _compared(args: Args, data: tuple[IdRows, IdRows], epochs: int) -> Part:
    """Train a factorization machine on an EmbeddingTable, whose keys collide or do not."""
    train, test = data
    ids = len(np.unique(train.keys))
    aucs: dict[int | None, float] = {}
    rows = []
    with spark_and_servers("collisions", args.memory, workers=1, servers=1):
        for slots in (*(1 << bit for bit in args.bits), None):
            by_pass = [_aucs(train, test, slots, seed, epochs) for seed in range(args.rounds)]
            aucs[slots] = mean(max(one) for one in by_pass)
            rows.append(
                {
                    "slots": "no collisions" if slots is None else f"2^{slots.bit_length() - 1}",
                    "ids that share one": f"{1 - _alone(train, slots) / ids:.1%}",
                    "AUC": f"{aucs[slots]:.4f}",
                    "by pass": " ".join(f"{auc:.4f}" for auc in by_pass[0]),
                }
            )
            tell(", ".join(rows[-1].values()))
    without = aucs.pop(None)
    sizes = [float(slots) for slots in aucs if slots is not None]
    curves: dict[str, list[list[float]]] = {
        "ids hashed to slots": [sizes, list(aucs.values())],
        "no collisions": [sizes, [without] * len(sizes)],
    }
    check = Check("AUC of the best table with collisions less that without", max(aucs.values()) - without, NOISE)
    facts = {"ids": ids, "rows": len(train), "to test": len(test), "factors": FACTORS}
    return Part(checks=[check], facts=facts, table=rows, curves={"AUC by slots": curves})


def _alone(rows: IdRows, slots: int | None) -> int:
    """Return how many ids have a slot of their own."""
    keys = np.unique(rows.keys)
    if slots is None:
        return len(keys)
    _, counts = np.unique(hash_bucket(keys) >> np.int64(32 - slots.bit_length() + 1), return_counts=True)
    return int((counts == 1).sum())


def _aucs(train: IdRows, test: IdRows, slots: int | None, seed: int, epochs: int) -> list[float]:
    """Train, and return the AUC of the rows to test after each pass."""
    settings = OnlinePlan(
        factors=FACTORS,
        optimizer="adagrad",
        lr=RATE,
        local_steps=False,
        intercept=False,
        init_scale=0.05,
        seed=seed,
        key_arguments={} if slots is None else {"hashBits": slots.bit_length() - 1},
    )
    program = OnlineProgram(settings, settings.new_table())
    rng = np.random.default_rng(seed)
    tested, labels = test.take(np.arange(len(test)))
    result = []
    for _ in range(epochs):
        order = rng.permutation(len(train))
        for begin in range(0, len(train), BATCH):
            program.learn(LabelledRows(*train.take(order[begin : begin + BATCH])))
        program.table.flush()
        result.append(Progressive.of(tally_of(program.margins(tested), labels, NO_WEIGHTS)).auc)
    program.table.free()
    return result


def _movielens(folder: str) -> tuple[IdRows, IdRows]:
    """Return users and items of MovieLens 1M, and whether they were rated 4 or more; a tenth of the rows is to test."""
    with gzip.open(Path(folder) / MOVIELENS) as file:
        result = np.loadtxt(file, np.int64, usecols=(0, 1, 2))
    labels = (result[:, 2] >= LIKED).astype(np.float32)
    is_test = np.random.default_rng(0).random(len(result)) < TESTED
    return (
        IdRows.of(result[~is_test, :2], labels[~is_test]),
        IdRows.of(result[is_test, :2], labels[is_test]),
    )


def _libfm(path: Path) -> IdRows:
    rows = [line.split() for line in path.read_text().splitlines()]
    ids = np.array([[int(pair.partition(":")[0]) for pair in row[1:]] for row in rows], np.int64)
    return IdRows.of(ids, np.array([row[0] == "1" for row in rows], np.float32))


def _generated() -> tuple[IdRows, IdRows]:
    """Return rows of a factorization machine's odds; nine tenths are to train on."""
    rng = np.random.default_rng(0)
    ids = np.stack([(size * rng.random(ROWS) ** 2.5).astype(np.int64) for size in SIZES], 1)
    vectors = [rng.standard_normal((size, GENERATED_FACTORS)) * 0.6 for size in SIZES]
    weights = [rng.standard_normal(size) * 0.6 for size in SIZES]
    chosen = np.stack([table[ids[:, field]] for field, table in enumerate(vectors)])
    pairs = 0.5 * ((chosen.sum(0) ** 2) - (chosen**2).sum(0)).sum(1)
    odds = pairs + sum(table[ids[:, field]] for field, table in enumerate(weights))
    labels = (rng.random(ROWS) < 1 / (1 + np.exp(-odds))).astype(np.float32)
    end = ROWS - ROWS // 10
    return IdRows.of(ids[:end], labels[:end]), IdRows.of(ids[end:], labels[end:])


BENCHMARK = Benchmark(
    "collisions",
    Args,
    {"movielens": movielens, "frappe": frappe, "generated": generated},
    {"movielens": MOVIELENS, "frappe": " and ".join(FRAPPE)},
)

if __name__ == "__main__":
    BENCHMARK.main()
