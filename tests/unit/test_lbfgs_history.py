"""L-BFGS's direction from inner products is that of the recursion on vectors."""

from __future__ import annotations

import numpy as np
import pytest

from ps2.algorithms.linear.solvers.descent import History

DIM, SIZE = 12, 4


class Vectors:
    """A quadratic whose gradient is known, walked at random; the vectors that the servers would hold."""

    def __init__(self, steps, size=SIZE, flat=()):
        rng = np.random.default_rng(5)
        half = rng.normal(size=(DIM, DIM))
        self.curvature = half @ half.T + np.eye(DIM)
        self.history = History(size)
        self.basis = np.zeros((2 * size + 1, DIM))
        self.pairs = []
        point = rng.normal(size=DIM)
        self.basis[-1] = self.curvature @ point
        self.history.set_gradient_square(self.basis[-1] @ self.basis[-1])
        for step in range(steps):
            s = rng.normal(size=DIM)
            y = -s if step in flat else self.curvature @ s
            self._take(s, y)
            if step not in flat:
                self.pairs.append((s, y))

    def _take(self, s, y):
        size, slot = self.history.size, self.history.next_slot
        self.basis[slot], self.basis[size + slot] = s, y
        self.basis[-1] = self.basis[-1] + y
        used = sorted({*self.history.slots, slot})
        known = [*used, *(size + i for i in used), 2 * size]
        products = np.zeros((3, 2 * size + 1))
        products[:, known] = self.basis[[slot, size + slot, 2 * size]] @ self.basis[known].T
        self.history.add(products)

    @property
    def direction(self):
        coefficients, slope = self.history.direction()
        direction = coefficients @ self.basis
        assert slope == pytest.approx(direction @ self.basis[-1], rel=1e-10)
        return direction


def two_loops(gradient, pairs):
    """Nocedal & Wright, Algorithm 7.4."""
    q, alphas = gradient.copy(), []
    for s, y in reversed(pairs):
        alphas.append(s @ q / (s @ y))
        q -= alphas[-1] * y
    if pairs:
        s, y = pairs[-1]
        q *= (s @ y) / (y @ y)
    for (s, y), alpha in zip(pairs, reversed(alphas), strict=True):
        q += s * (alpha - y @ q / (s @ y))
    return -q


@pytest.mark.parametrize("steps", [0, 1, 3, SIZE, SIZE + 1, 3 * SIZE])
def test_direction_when_steps_were_taken_then_matches_recursion(steps):
    walked = Vectors(steps)
    expected = two_loops(walked.basis[-1], walked.pairs[-SIZE:])
    np.testing.assert_allclose(walked.direction, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("flat", [(0,), (2,), (SIZE + 1,)])
def test_direction_when_step_had_no_curvature_then_skips_it(flat):
    walked = Vectors(SIZE, SIZE + 2, flat=flat)
    expected = two_loops(walked.basis[-1], walked.pairs)
    np.testing.assert_allclose(walked.direction, expected, rtol=1e-9, atol=1e-9)


def test_slot_when_all_are_used_then_is_that_of_the_oldest():
    assert [Vectors(steps).history.next_slot for steps in range(2 * SIZE)] == [*range(SIZE), *range(SIZE)]


def test_slot_when_its_step_had_no_curvature_then_comes_again():
    assert Vectors(2, flat=(1,)).history.next_slot == 1


def test_steps_when_forgotten_then_direction_is_down_gradient():
    walked = Vectors(3)
    walked.history.clear()
    assert walked.history.is_empty
    np.testing.assert_array_equal(walked.direction, -walked.basis[-1])


def test_direction_when_quadratic_then_reaches_minimum():
    """Exact searches along the directions of a history without end end after DIM steps."""
    walked = Vectors(0, DIM)
    for _ in range(DIM):
        direction = walked.direction
        length = -(walked.basis[-1] @ direction) / (direction @ walked.curvature @ direction)
        walked._take(length * direction, length * walked.curvature @ direction)
    np.testing.assert_allclose(walked.basis[-1], 0, atol=1e-6)
