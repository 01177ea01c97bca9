"""Training stops when the loss of rows held out gets no better, and the best model is kept."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from ps2.algorithms.linear.solvers.monitors import Validation


class Model:
    """Remembers what it was made a copy of."""

    def __init__(self):
        self.copied = None

    def copy(self, other):
        self.copied = other


def look(validation, loss, model, weight=2.0):
    report = SimpleNamespace(held_loss=loss * weight, held_weight=weight)
    return validation.add_loss(lambda question: question(), report, model)


def looks(losses, tol):
    """Return whether each loss stops the training, and the number of the model that is kept."""
    best, seen = Model(), []
    validation = Validation(tol, "last", best, seen)
    stops = [bool(look(validation, loss, number)) for number, loss in enumerate(losses)]
    assert seen == pytest.approx(losses)
    assert validation.best is best
    return stops, best.copied


@pytest.mark.parametrize(
    ("losses", "tol", "stops", "kept"),
    [
        ([1.0, 0.8, 0.7], 0.01, [False, False, False], 2),
        ([1.0, 0.8, 0.9], 0.01, [False, False, True], 1),
        ([1.0, 0.999], 0.01, [False, True], 1),
        ([1.0, 0.999], 0.0, [False, False], 1),
        ([1.0, 1.0], 0.0, [False, False], 0),
        ([0.001, 0.00095], 0.01, [False, True], 1),
    ],
)
def test_training_when_loss_hardly_improves_then_keeps_the_best(losses, tol, stops, kept):
    assert looks(losses, tol) == (stops, kept)


def test_look_when_no_row_was_held_out_then_nothing_happens():
    best, losses = Model(), []
    validation = Validation(0.1, "last", best, losses)
    assert look(validation, 0.0, 1, weight=0.0) == ""
    assert (best.copied, losses, validation.best) == (None, [], "last")
