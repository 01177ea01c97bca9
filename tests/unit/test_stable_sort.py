"""Keys are sorted stably."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ps2.ops import distinct

ANY_KEYS = hnp.arrays(np.int64, st.integers(0, 60), elements=st.integers(-(2**63), 2**63 - 1) | st.integers(0, 600))


@pytest.fixture(scope="module", autouse=True, params=[0, distinct.FEW], ids=["many keys", "few keys"])
def few(request):
    """Up to so many keys go without kernels."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distinct, "FEW", request.param)
        yield request.param


@given(ANY_KEYS)
def test_sort_when_given_any_keys_then_equals_a_stable_argsort(keys):
    before = keys.copy()
    ours, order = distinct.sort_keys(keys)
    expected = np.argsort(keys, kind="stable")
    np.testing.assert_array_equal(order, expected)
    np.testing.assert_array_equal(ours, keys[expected])
    np.testing.assert_array_equal(keys, before)


@pytest.mark.parametrize(("low", "high"), [(0, 60_000_000), (0, 2**63 - 1), (10**12, 10**12 + 500), (5, 6)])
def test_sort_when_given_many_keys_then_equals_a_stable_argsort(low, high):
    keys = np.random.default_rng(1).integers(low, high, 20_000)
    np.testing.assert_array_equal(distinct.sort_keys(keys)[1], np.argsort(keys, kind="stable"))
