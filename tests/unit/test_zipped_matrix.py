"""Operations on vectors for whole matrices, and what is said to whom tries them otherwise."""

from __future__ import annotations

import numpy as np
import pytest

from ps2 import DCV
from ps2.errors import NotColocatedError, ShapeError, UsageError

pytestmark = pytest.mark.parametrize("ps", [1, 3], indirect=True, scope="module")

ROWS, DIM = 3, 50


@pytest.fixture
def matrices(ps):
    created = [DCV.dense(DIM, ROWS).matrix() for _ in range(3)]
    yield created
    for matrix in created:
        matrix.free()


def test_zip_when_adagrad_applied_then_each_row_steps(matrices):
    weight, square, gradient = matrices
    g = np.random.default_rng(0).normal(size=(ROWS, DIM)).astype(np.float32)
    gradient.push(range(ROWS), g)
    for _ in range(2):
        assert weight.zip(square, gradient).apply("adagrad", lr=0.5) is weight
    expected = -0.5 * g / np.abs(g) - 0.5 * g / np.sqrt(2 * g**2)
    np.testing.assert_allclose(weight.pull(), expected, rtol=1e-5)


def test_zip_when_operation_answers_then_by_row(matrices):
    weight, other, _ = matrices
    weight.fill(2.0).zip(other.fill(3.0))
    assert weight.zip(other).apply("dot").tolist() == [6.0 * DIM] * ROWS
    assert weight.zip().apply("sum").tolist() == [2.0 * DIM] * ROWS


def test_apply_when_operation_is_on_vectors_then_names_zip(matrices):
    with pytest.raises(UsageError, match=r"m\.zip\(square, gradient\)\.apply\('adagrad'.*EmbeddingTable"):
        matrices[0].apply("adagrad", lr=0.1)


def test_zip_when_shapes_differ_then_names_them(matrices):
    other = DCV.dense(DIM, ROWS + 1).matrix()
    with pytest.raises(ShapeError, match=r"expected matrices of shape \(3, 50\), got \(4, 50\)"):
        matrices[0].zip(other)
    other.free()


def test_zip_when_matrices_are_sparse_then_refused(ps):
    one, other = (DCV.sparse(DIM, ROWS).matrix() for _ in range(2))
    with pytest.raises(NotColocatedError, match="its own slots"):
        one.zip(other)
    one.free()
    other.free()


def test_pull_when_indices_have_two_dimensions_then_says_how(ps):
    vector = DCV.sparse(DIM)
    with pytest.raises(ShapeError, match=r"reshape\(-1\); ps2\.EmbeddingTable takes keys of any shape"):
        vector.pull([[1, 2], [3, 4]])
