"""Options of ``ps2 train`` that boosted trees and random forests share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import click

from ps2.errors import InputError

if TYPE_CHECKING:
    from ps2.algorithms.text.libsvm import LabelledRows

Task = Literal["binary", "multiclass", "regression"]

task_option = click.option(
    "--task",
    type=click.Choice(["binary", "multiclass", "regression"]),
    default="binary",
    show_default=True,
    help="Kind of labels: two classes, several classes, or numbers.",
)


def classes_of(rows: LabelledRows, task: Task) -> tuple[float, ...]:
    """Return the labels of class 0, 1, ...; none for a regression."""
    from ps2.algorithms.text.libsvm import MAX_CLASSES

    if task == "regression":
        return ()
    if task == "binary" and len(rows.counts) > 2:
        raise InputError(
            f"{rows.path}: labels: expected two different values, got {rows.shown_labels}; "
            "--task multiclass or --task regression takes more"
        )
    return rows.classes(2 if task == "binary" else MAX_CLASSES)
