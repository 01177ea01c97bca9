"""The results that several commands of ``ps2 train`` print in the same form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from ps2.cli.output import print_table
from ps2.cli.training.options import RunOptions
from ps2.text_tables import Column

if TYPE_CHECKING:
    from ps2.algorithms.training.record import TrainingHistory

MAX_CLASSES_SHOWN = 10  # of more classes, the first nine and the last one are printed
TITLES = {"auc": "AUC", "rmse": "RMSE", "mae": "MAE", "ndcg@10": "NDCG@10", "map": "MAP"}


def print_rows(rows: int, features: int, classes: Sequence[Any] = ()) -> None:
    """Print the numbers of rows and features, and the label of each class."""
    from ps2.algorithms.text.libsvm import label_text

    text = f"{rows:,} rows, {features:,} features"
    labels = [f"label {label_text(label)} is class {number}" for number, label in enumerate(classes)]
    if len(labels) > MAX_CLASSES_SHOWN:
        labels = [*labels[: MAX_CLASSES_SHOWN - 1], "...", labels[-1]]
    click.echo(f"{text}; {', '.join(labels[:-1])} and {labels[-1]}" if labels else text)


def print_history(history: TrainingHistory, steps: str, run: RunOptions, with_reason: bool = False) -> None:
    """Print the pace, the reason of the end if ``with_reason``, and a table of the first, the last and other steps.

    Args:
        steps: the plural noun for the training's steps, such as "iterations".
    """
    from ps2.algorithms.training.record import cells, thin, titles

    print_pace(history, steps, run)
    if with_reason and history.reason:
        click.echo(history.reason)
    click.echo()
    print_table([Column(title, right=True) for title in titles(history)], thin(cells(history)))
    click.echo()


def print_pace(history: TrainingHistory, steps: str, run: RunOptions) -> None:
    """Print the number of steps, and the time of a step; ``steps`` is the plural noun for the steps."""
    servers = run.servers or 2
    location = "" if run.fleet else f" on {servers} server{'s' * (servers != 1)}"
    if history.placement is not None and history.placement.via == "local":
        location = " in one worker"
    total_s = sum(history.seconds)
    # A restored training that had already finished has no steps.
    step_ms = 1e3 * total_s / max(1, history.steps)
    click.echo(f"{history.steps} {steps}{location} in {total_s:.1f} s, {step_ms:.1f} ms {history.words.a_step}")


def print_measures(measures: Mapping[str, Mapping[str, float]]) -> None:
    """Print the measures of the model on each file."""
    names = list(next(iter(measures.values())))
    print_table(
        [Column("all rows of"), *(Column(TITLES.get(name, name), right=True) for name in names)],
        [
            (file, *(f"{value:,}" if isinstance(value, int) else f"{value:.4f}" for value in values.values()))
            for file, values in measures.items()
        ],
    )
    click.echo()


def print_best(title: str, heading: str, best: Sequence[tuple[Any, Sequence[tuple[Any, float]]]]) -> None:
    """Print the best matches of each id, with their scores, and an empty line; print nothing if there are no ids."""
    if best:
        rows = [(str(id), " ".join(f"{match} {score:.2f}" for match, score in matches)) for id, matches in best]
        print_table([Column(title), Column(heading, folds=True)], rows)
        click.echo()


def steps_record(history: TrainingHistory) -> list[dict[str, Any]]:
    """Return all steps, for JSON and YAML. A loss of NaN becomes None, because JSON has no NaN."""
    from ps2.algorithms.training.record import by_step

    words = history.words
    return [
        {
            words.step: step.number,
            "seconds": step.seconds,
            "loss": None if step.objective != step.objective else step.objective,
            **({} if step.validation is None else {"validation": step.validation}),
            **step.metrics,
        }
        for step in by_step(history)
    ]
