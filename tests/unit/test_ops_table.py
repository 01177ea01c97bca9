"""The table checks a call before it is sent."""

from __future__ import annotations

import builtins
import math
import re
import sys
import time
from concurrent.futures import ThreadPoolExecutor, wait
from importlib import import_module

import numpy as np
import pytest

from ps2.errors import ConfigError, DTypeError, NotFoundError, ShapeError
from ps2.ops import all as all_ops
from ps2.ops.all import TABLE, lookup, optimizer_steps
from ps2.ops.table import Optimizer, Row, families, op


def test_check_when_scalars_are_omitted_then_fills_defaults():
    checked = lookup("adam").check(4, "float32", {"lr": 1, "step": 3})
    betas = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8}
    assert checked == {"lr": 1.0, **betas, "step": 3, "l1": 0.0, "l2": 0.0, "lazy": False}


@pytest.mark.parametrize(("dtype", "expected"), [("float32", float), ("int32", int), ("int64", int)])
def test_check_when_given_integer_then_converts_to_dtype(dtype, expected):
    assert type(lookup("fill").check(1, dtype, {"value": 2})["value"]) is expected


def test_check_when_rows_are_missing_then_names_them():
    with pytest.raises(ShapeError, match=r"'adam' takes 4 vectors \(weight, velocity, square, gradient\), got 2"):
        lookup("adam").check(2, "float32", {"lr": 0.1, "step": 1})


def test_check_when_dtype_is_rejected_then_lists_accepted_ones():
    with pytest.raises(DTypeError, match="'div' works on float32 or float64, got int64"):
        lookup("div").check(2, "int64", {})


def test_check_when_a_scalar_is_required_then_says_so():
    with pytest.raises(ConfigError, match="'adam', parameter 'step': required"):
        lookup("adam").check(4, "float32", {"lr": 0.1})


def test_check_when_a_scalar_is_unknown_then_names_the_known():
    with pytest.raises(ConfigError, match="no parameter 'rate'; it has: lr"):
        lookup("sgd").check(2, "float32", {"rate": 0.1})


@pytest.mark.parametrize("value", ["0.1", None, True, [0.1]])
def test_check_when_a_scalar_is_not_a_number_then_raises(value):
    with pytest.raises(ConfigError, match="'sgd', parameter 'lr': expected a number"):
        lookup("sgd").check(2, "float32", {"lr": value})


@pytest.mark.parametrize("value", [True, np.True_, 1, 1.0, np.int64(1)])
def test_check_when_a_flag_is_true_or_one_then_is_true(value):
    assert lookup("adagrad").check(3, "float32", {"lr": 1, "lazy": value})["lazy"] is True


@pytest.mark.parametrize("value", [False, 0, 0.0])
def test_check_when_a_flag_is_false_or_zero_then_is_false(value):
    assert lookup("adagrad").check(3, "float32", {"lr": 1, "lazy": value})["lazy"] is False


@pytest.mark.parametrize("value", [2, -1, 0.5, math.nan, "true", None, [True]])
def test_check_when_a_flag_is_neither_then_raises(value):
    with pytest.raises(ConfigError, match="'adagrad', parameter 'lazy': expected True or False, got"):
        lookup("adagrad").check(3, "float32", {"lr": 1, "lazy": value})


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("int64", 1.5),
        ("int64", math.nan),
        ("int64", math.inf),
        ("int64", 2**63),
        ("int32", 0.5),
        ("int32", -(2**31) - 1),
    ],
)
def test_check_when_integer_dtype_cannot_hold_scalar_then_raises(dtype, value):
    with pytest.raises(DTypeError, match="'fill', parameter 'value'"):
        lookup("fill").check(1, dtype, {"value": value})


def test_check_when_vector_is_int32_then_positions_may_be_larger():
    assert lookup("pull").check(1, "int32", {"start": 2**40, "stop": 2**41}) == {"start": 2**40, "stop": 2**41}


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("sgd", {"lr": 0}, "'lr': expected a finite number > 0, got 0.0"),
        ("sgd", {"lr": -1}, "'lr': expected a finite number > 0, got -1.0"),
        ("sgd", {"lr": math.nan}, "'lr': expected a finite number > 0, got nan"),
        ("sgd", {"lr": math.inf}, "'lr': expected a finite number > 0, got inf"),
        ("adam", {"lr": 1, "step": 0}, "'step': expected a finite number >= 1, got 0"),
        ("adam", {"lr": 1, "step": 1, "beta1": 1}, "'beta1': expected a finite number >= 0 and < 1, got 1.0"),
        ("adam", {"lr": 1, "step": 1, "beta2": -0.1}, "'beta2': expected a finite number >= 0 and < 1, got -0.1"),
        ("adam", {"lr": 1, "step": 1, "eps": 0}, "'eps': expected a finite number > 0, got 0.0"),
        ("momentum", {"lr": 1, "momentum": 1}, "'momentum': expected a finite number >= 0 and < 1, got 1.0"),
        ("rmsprop", {"lr": 1, "rho": 2}, "'rho': expected a finite number >= 0 and < 1, got 2.0"),
        ("ftrl", {"alpha": 0}, "'alpha': expected a finite number > 0, got 0.0"),
        ("ftrl", {"alpha": 1, "l1": -1}, "'l1': expected a finite number >= 0, got -1.0"),
        ("sgd", {"lr": 1e39}, "'lr': expected a finite number > 0 in float32, got 1e+39"),
        ("sgd", {"lr": 1, "l2": 1e39}, "'l2': expected a finite number >= 0 in float32, got 1e+39"),
        ("adagrad", {"lr": 1, "eps": 1e-50}, "'eps': expected a finite number > 0 in float32, got 1e-50"),
    ],
)
def test_check_when_scalar_is_out_of_range_then_names_range(name, params, message):
    op = lookup(name)
    with pytest.raises(ConfigError) as caught:
        op.check(op.rows, "float32", params)
    assert str(caught.value) == f"operation {name!r}, parameter {message}"


def test_check_when_rows_are_float64_then_takes_larger_scalars():
    assert lookup("sgd").check(2, "float64", {"lr": 1e39})["lr"] == 1e39


@pytest.mark.parametrize(("value", "got"), [(-1e39, "-1e+39"), (10**400, "one of 1329 bits")])
def test_check_when_scalar_is_beyond_float32_then_names_it(value, got):
    with pytest.raises(DTypeError, match=re.escape(f"'value': expected a number that fits float32, got {got}")):
        lookup("fill").check(1, "float32", {"value": value})


def test_check_when_a_scalar_has_no_range_then_takes_nan():
    assert math.isnan(lookup("fill").check(1, "float32", {"value": math.nan})["value"])


def test_lookup_when_the_name_is_unknown_then_names_the_known():
    with pytest.raises(
        NotFoundError, match=r"^there is no operation 'adma'; the most similar names: adam, [^;]*; 'ps2 ops' lists all$"
    ):
        lookup("adma")


@pytest.mark.parametrize("name", ["nonsense", "x" * 10**6])
def test_lookup_when_nothing_is_like_it_then_names_the_list(name):
    with pytest.raises(NotFoundError, match=r"; no name is similar; 'ps2 ops' lists all$"):
        lookup(name)


def test_table_when_listed_then_only_additive_writes_create_keys():
    # A family's operations are there once something has used the family.
    assert {op.name for op in TABLE.values() if op.creates and "." not in op.name} == {
        "scatter",
        "scatter_add",
        "scatter_sub",
        "rows_scatter_add",
        "columns_push",
        "columns_add",
        "columns_add_some",
        *("embedding_sgd", "embedding_adagrad", "embedding_adam", "embedding_ftrl"),
    }


@pytest.mark.parametrize("op", TABLE.values(), ids=TABLE)
def test_op_when_listed_then_is_documented(op):
    assert op.doc


def test_optimizers_when_listed_then_are_declared_ones():
    result = optimizer_steps()
    assert {"adam", "sgd", "ftrl"} <= set(result)
    assert not {"ftrl_weights", "axpy"} & set(result)


def test_optimizer_when_scalars_are_missing_then_config_error():
    def halve(weight: Row, gradient: Row, *, lr: float) -> None: ...

    with pytest.raises(ConfigError, match=r"'halve': .* weight, its state, gradient, and the scalars lr, l1 and l2"):
        op(writes=("weight",), optimizer=Optimizer())(halve)
    assert "halve" not in TABLE


def bare(u, *, low: float) -> None: ...
def plain(u: np.ndarray, *, low: float) -> None: ...
def positional(u: Row, low: float) -> None: ...
def untyped(u: Row, *, low) -> None: ...
def good(u: Row) -> None: ...
def number(u: Row) -> float: ...
def stateful(weight: Row, mean: Row, gradient: Row, *, lr: float, l1: float = 0.0, l2: float = 0.0) -> None: ...
def foreign(weight: Row, gradient: Row, *, lr: float, decay: float, l1: float = 0.0, l2: float = 0.0) -> None: ...


STEP = {"optimizer": Optimizer(), "writes": ("weight",)}


@pytest.mark.parametrize(
    ("fn", "declared", "message"),
    [
        (bare, {}, "'bare': u: expected an array of ps2.ops.table .*, got no annotation; scalars are keyword-only"),
        (plain, {}, "'plain': u: expected an array of ps2.ops.table .*, got <class 'numpy.ndarray'>"),
        (positional, {}, "'positional': low: expected an array .*, got <class 'float'>; scalars are keyword-only"),
        (untyped, {}, "'untyped': low: expected bool, int or float, .*, got no annotation"),
        (good, {"writes": ("v",)}, r"'good': writes: expected names of its vectors or matrices \(u\), got 'v'"),
        (number, {"reduce": "maximum"}, "'number': reduce: expected one of sum, max, .*, got 'maximum'"),
        (number, {}, "'number': reduce: expected one of .*, because the function returns a number, got None"),
        (stateful, STEP, "'stateful': writes: expected weight and its state, of which mean is missing"),
        (foreign, STEP, "'foreign': decay: expected a default, got none: estimators pass lr, l1, l2, step and lazy"),
    ],
)
def test_op_when_declared_wrongly_then_config_error(fn, declared, message):
    with pytest.raises(ConfigError, match=message):
        op(**declared)(fn)
    assert fn.__name__ not in TABLE


@pytest.mark.parametrize(("family", "module"), families().items())
def test_families_when_found_then_operation_names_have_prefix(family, module):
    import_module(module)
    names = [name for name, op in TABLE.items() if op.module == module]
    assert names
    assert all(name.startswith(f"{family}.") for name in names)


HALF = """
import threading

may_end = threading.Event()
here.append(may_end)
may_end.wait(30)
is_whole = True
"""


def test_lookup_when_a_family_is_being_imported_then_waits(tmp_path, monkeypatch):
    here = []
    monkeypatch.setattr(builtins, "here", here, raising=False)
    monkeypatch.setitem(TABLE, "half.fill", TABLE["fill"])
    (tmp_path / "half_imported.py").write_text(HALF)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(all_ops, "_LOADED", set())
    monkeypatch.setattr(all_ops, "families", lambda: {"half": "half_imported"})
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(lookup, "half.fill")
        deadline_s = time.monotonic() + 30
        while not here:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        second = threads.submit(lambda: (lookup("half.fill"), hasattr(sys.modules["half_imported"], "is_whole"))[1])
        assert not wait([second], timeout=0.2).done
        here[0].set()
        assert second.result(30)
        assert first.result(30) is TABLE["fill"]
