"""Lasso by coordinate descent on a schedule: against other schedules, OWL-QN, scikit-learn and celer.

    python -m benchmarks.lasso --part news20 --data-dir FOLDER

docs/performance/linear.md says what is measured and how to read it.
"""

from __future__ import annotations

import click

from benchmarks.compared import Chosen, Parts
from benchmarks.lasso_part import Asked

PARTS = Parts(names=("correlated", "news20", "path", "news20_path"), generated=("correlated", "path"))
RATIO = click.FloatRange(0.0, 1.0, min_open=True, max_open=True)


@PARTS.command(
    "news20-bigram.train.libsvm.gz",
    click.option("--rows", type=click.IntRange(1000), default=100_000, help="Of the generated rows."),
    click.option("--features", type=click.IntRange(1000), default=20_000, help="Of the generated rows."),
    click.option(
        "--ratio", type=RATIO, default=0.05, help="Strength, or a path's last one, as a part of the largest one."
    ),
    click.option("--models", type=click.IntRange(2), default=50, help="Of a path."),
    click.option("--most-s", type=float, default=20.0, help="When a training is given up."),
    least_rounds=2,
)
def main(chosen: Chosen, rows: int, features: int, ratio: float, models: int, most_s: float) -> None:
    """Compare ways of training lasso; exit with 1 if an optimum is not what it should be."""
    chosen.measure(
        "lasso",
        Asked(chosen.rounds, chosen.data_dir, rows, features, ratio, models, most_s, chosen.memory),
        ("scikit-learn", "celer"),
    )


if __name__ == "__main__":
    main()
