"""Random numbers of a matrix depend on seed, row and column alone, and are distributed as they should be."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ps2 import DCV
from ps2.errors import ConfigError, DTypeError, UsageError
from ps2.matrix.partition import Partition
from ps2.ops.draws import TILE, rows_random
from tests.fakes import FleetInProcess, installed, session_over

DIM = 2 * TILE + 5


def drawn(begin, end, rows=3, **how):
    block = np.zeros((rows, end - begin), np.float32)
    rows_random(block, np.arange(rows)[::-1].copy(), Partition(0, begin, end), **{"seed": 7, **how})
    return block


@given(st.lists(st.integers(1, DIM - 1), max_size=4), st.booleans())
def test_numbers_when_matrix_is_cut_anywhere_then_are_the_same(cuts, normal):
    bounds = [0, *sorted(set(cuts)), DIM]
    parts = [drawn(begin, end, normal=normal) for begin, end in pairwise(bounds)]
    assert np.array_equal(np.hstack(parts), drawn(0, DIM, normal=normal))


@pytest.mark.parametrize(("normal", "mean", "std"), [(False, 0.5, 12**-0.5), (True, 0.0, 1.0)])
def test_numbers_when_many_then_distributed_and_rows_differ(normal, mean, std):
    """Bounds are five standard errors."""
    block = drawn(0, 100_000, 8, normal=normal).astype(np.float64)
    assert abs(block.mean() - mean) < 5 * std / block.size**0.5
    assert abs(block.std() - std) < 5 * std / block.size**0.5
    assert np.abs(np.corrcoef(block) - np.eye(8)).max() < 5 / 100_000**0.5
    neighbours = np.corrcoef(block[:, :-1].ravel(), block[:, 1:].ravel())[0, 1]
    assert abs(neighbours) < 5 / block.size**0.5
    shares = np.mean(np.abs(block - mean)[..., None] < np.array([0.1, 0.25, 0.4]), axis=(0, 1))
    expected = [0.0796557, 0.1974127, 0.3108435] if normal else [0.2, 0.5, 0.8]
    assert np.abs(shares - expected).max() < 5 * 0.5 / block.size**0.5


def test_numbers_when_the_seed_is_another_then_others():
    assert abs(np.corrcoef(drawn(0, DIM).ravel(), drawn(0, DIM, seed=8).ravel())[0, 1]) < 5 / (3 * DIM) ** 0.5


@pytest.fixture(params=[1, 3])
def session(request):
    with installed(session_over(FleetInProcess(request.param))) as session:
        yield session


@pytest.mark.parametrize("layout", ["row", "column"])
@pytest.mark.parametrize(
    ("given", "low", "high"),
    [
        (("uniform", {}), 0, 1),
        (("uniform", {"low": -3, "high": 5}), -3, 5),
        (("normal", {"mean": 9, "std": 0.1}), 8, 10),
    ],
)
def test_fill_random_when_called_then_same_on_any_server_count(session, layout, given, low, high):
    distribution, how = given
    matrix = DCV.dense(DIM, 4, "float64", layout=layout).matrix().fill(77)
    assert matrix.fillRandom(distribution, 7, [2, 0], **how) is matrix
    result = matrix.pull(range(4)) if layout == "row" else matrix.pull(columns=range(DIM)).T
    assert ((result[[0, 2]] >= low) & (result[[0, 2]] < high)).all()
    assert (result[[1, 3]] == 77).all()
    scale = {"uniform": high - low, "normal": how.get("std")}[distribution]
    expected = np.zeros((4, DIM))
    shift = how.get("mean", low)
    rows_random(expected, np.array([0, 2]), Partition(0, 0, DIM), seed=7, shift=shift, scale=scale,
                normal=distribution == "normal")  # fmt: skip
    assert np.array_equal(result[[0, 2]], expected[[0, 2]])


@pytest.mark.parametrize(
    ("distribution", "how", "said"),
    [
        ("poisson", {}, "distribution: expected 'uniform' or 'normal', got 'poisson'"),
        ("uniform", {"std": 1}, "std: distribution 'uniform' takes only low and high"),
        ("normal", {"low": 1}, "low: distribution 'normal' takes only mean and std"),
        ("uniform", {"low": 2}, r"high: expected low \(2\) or more, got 1.0"),
        ("normal", {"std": -1}, "std: expected 0 or more, got -1"),
        ("normal", {"mean": float("nan")}, "mean: expected a finite number, got nan"),
        ("uniform", {"high": "1"}, "high: expected a finite number, got '1'"),
        ("normal", {"std": 1e38}, r"mean, std: expected numbers of 'normal' that fit float32, got 0.0, 1e\+38"),
    ],
)
def test_fill_random_when_a_parameter_is_wrong_then_named(session, distribution, how, said):
    with pytest.raises(ConfigError, match=said):
        DCV.dense(5, 2).matrix().fillRandom(distribution, 1, **how)


def test_fill_random_when_seed_or_matrix_is_invalid_then_refused(session):
    with pytest.raises(DTypeError, match="'seed': expected an int64"):
        DCV.dense(5, 2).matrix().fillRandom("normal", 2**63)
    with pytest.raises(DTypeError, match="works on float32 or float64, got int32"):
        DCV.dense(5, 2, "int32").matrix().fillRandom("uniform", 1)
    with pytest.raises(UsageError, match="fillRandom needs a dense matrix"):
        DCV.sparse(5, 2).matrix().fillRandom("uniform", 1)
