"""Scorers: refreshing while others score, and rows that they refuse."""

from __future__ import annotations

import sys
import threading

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from ps2.algorithms.deep.architecture import Architecture
from ps2.data.hashing import Field, FieldHasher
from ps2.data.key_rows import KeyRows
from ps2.errors import (
    CheckpointCorruptError,
    ConfigError,
    DTypeError,
    InputError,
    OutOfRangeError,
    RecoveryError,
    ShapeError,
    UsageError,
)
from ps2.ops.guards import readable
from ps2.serving import Scorer, compact, loading
from ps2.serving import key_table as tables
from ps2.serving.key_table import UNKNOWN, key_table
from ps2.storage.exports import read_manifest
from tests.exporting import WIDTH, export, values_of

KEYS = np.arange(0, 40_000, 2)


def test_lookup_of_random_keys_then_as_a_dict():
    rng = np.random.default_rng(1)
    spread = [rng.integers(0, 2**63 - 1, 5000), rng.integers(0, 2**20, 5000), np.array([0, 2**63 - 1])]
    keys = np.unique(np.concatenate(spread))
    table = key_table(keys, values_of(keys))
    expected = np.concatenate([rng.choice(keys, 3000), rng.integers(0, 2**63 - 1, 3000), keys - 1, keys])
    expected.flags.writeable = False
    out, known = np.zeros((len(expected), WIDTH), np.float32), np.full(len(expected), UNKNOWN, np.uint8)
    table.look_up(expected, known, out)
    there = np.isin(expected, keys)
    np.testing.assert_array_equal(known == 1, there)
    np.testing.assert_array_equal(out, np.where(there[:, None], values_of(expected), 0))


@pytest.mark.parametrize("most_bytes", [0, 4000, 1 << 20])
def test_deltas_of_any_sizes_when_stacked_then_as_a_dict(monkeypatch, most_bytes):
    monkeypatch.setattr(tables, "MERGED_BYTES", most_bytes)
    rng, stack, expected = np.random.default_rng(most_bytes), (), {}
    for shift, size in enumerate([50, 1, 3, 200, 0, 7, 7, 7, 1]):
        keys, removed = (np.unique(rng.integers(0, 300, size)) for _ in range(2))
        stack = tables.add_newest(stack, tables.delta_table(keys, values_of(keys, shift), removed, "a delta"))
        expected |= dict.fromkeys(removed.tolist(), None) | dict.fromkeys(keys.tolist(), shift)
    requested = readable(np.arange(300))
    out, known = np.zeros((300, WIDTH), np.float32), np.full(300, UNKNOWN, np.uint8)
    for table in stack:
        table.look_up(requested, known, out)
    for key in range(300):
        shift = expected.get(key)
        np.testing.assert_array_equal(out[key], np.zeros(WIDTH) if shift is None else values_of([key], shift)[0])
        assert known[key] == (UNKNOWN if key not in expected else tables.REMOVED if shift is None else tables.PRESENT)


def test_refresh_when_nothing_is_new_then_false(tmp_path):
    export(tmp_path, KEYS)
    scorer = Scorer(str(tmp_path))
    assert not scorer.refresh()
    export(tmp_path, [1], since="last")
    assert scorer.refresh()
    assert scorer.number == 2


def test_refresh_when_a_delta_came_then_the_base_stays_mapped(tmp_path):
    export(tmp_path, KEYS)
    scorer = Scorer(str(tmp_path))
    base = scorer._model.loaded.base
    for shift in range(1, 4):
        export(tmp_path, [shift], shift, since="last")
        scorer.refresh()
    assert scorer._model.loaded.base is base
    fresh = Scorer(str(tmp_path))
    np.testing.assert_array_equal(fresh.vectors(np.arange(9)), scorer.vectors(np.arange(9)))


def test_refresh_when_it_loads_then_threads_take_short_turns(tmp_path, monkeypatch):
    export(tmp_path, KEYS)
    scorer, before, during, load = Scorer(str(tmp_path)), sys.getswitchinterval(), [], loading.load
    monkeypatch.setattr(
        "ps2.serving.scorer.load", lambda *given: during.append(sys.getswitchinterval()) or load(*given)
    )
    export(tmp_path, KEYS, 1)
    assert scorer.refresh()
    assert during[0] < before == sys.getswitchinterval()


def test_refresh_when_deltas_were_replaced_then_as_a_new_scorer(tmp_path):
    first = export(tmp_path, KEYS)
    export(tmp_path, [1, 2], 50, since=first)
    scorer = Scorer(str(tmp_path))
    export(tmp_path, [2, 3], 70, since=first)
    scorer.refresh()
    np.testing.assert_array_equal(scorer.vectors(np.arange(5)), Scorer(str(tmp_path)).vectors(np.arange(5)))
    assert not scorer.lookUp(1)[1]


def test_refresh_when_damaged_then_the_last_export_stays(tmp_path):
    export(tmp_path, KEYS)
    scorer = Scorer(str(tmp_path))
    export(tmp_path, [2], 50, since="last")
    damaged = tmp_path / read_manifest(str(tmp_path)).newest.folder / "values-0.npy"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    with pytest.raises(CheckpointCorruptError, match="values-0"):
        scorer.refresh()
    np.testing.assert_array_equal(scorer.vectors([2]), values_of([2]))
    export(tmp_path, [2], 60, since=1)
    assert scorer.refresh()


def test_compacted_export_then_as_before_and_deltas_go_on(tmp_path):
    export(tmp_path, KEYS, dense={"bias": np.array(2.0)})
    for shift in range(1, 6):
        export(tmp_path, [shift, 10], shift, removed=[shift - 1, 12], since="last")
    before = Scorer(str(tmp_path))
    created = compact(str(tmp_path))
    after = Scorer(str(tmp_path))
    for result, expected in zip(after.lookUp(np.arange(50)), before.lookUp(np.arange(50)), strict=True):
        np.testing.assert_array_equal(result, expected)
    assert (created.number, created.full, len(after.manifest.entries)) == (7, True, 1)
    assert created.keys == len(KEYS) + 1 - 4  # 5 came; 0, 2, 4 and 12 went
    export(tmp_path, [12], 9, since="last")
    before.refresh()
    np.testing.assert_array_equal(before.vectors([12, 14]), [*values_of([12], 9), *values_of([14])])


def test_compact_when_a_delta_comes_meanwhile_then_it_stays(tmp_path, monkeypatch):
    export(tmp_path, KEYS)
    load = loading.load

    def replaced(*arguments):
        export(tmp_path, [1], since="last")
        return load(*arguments)

    monkeypatch.setattr("ps2.serving.loading.load", replaced)
    with pytest.raises(RecoveryError, match="another program has exported to this folder"):
        compact(str(tmp_path))
    assert Scorer(str(tmp_path)).lookUp([1])[1].all()


def test_load_when_the_export_is_replaced_then_its_successor(tmp_path, monkeypatch):
    export(tmp_path, KEYS)
    load, times = loading.load, []

    def replaced(*arguments):
        if not times:  # twice, so that the first one's files are gone
            times.append(1)
            export(tmp_path, KEYS, 1)
            export(tmp_path, KEYS, 2)
        return load(*arguments)

    monkeypatch.setattr("ps2.serving.scorer.load", replaced)
    assert Scorer(str(tmp_path)).number == 3


def test_scores_while_exports_come_then_each_of_one_export(tmp_path):
    export(tmp_path, KEYS)
    ended, mixed, reads = threading.Event(), [], [0]
    expected = KEYS[::50]

    def read(scorer):
        while not ended.is_set():
            shifts = np.unique(scorer.vectors(expected)[:, 0] - values_of(expected)[:, 0])
            reads[0] += 1
            if len(shifts) > 1:
                mixed.append(shifts)

    with Scorer(str(tmp_path), refreshS=0.005) as scorer:
        threads = [threading.Thread(target=read, args=(scorer,)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for shift in range(1, 25):
            export(tmp_path, KEYS, shift, since="last" if shift % 4 else None)
        ended.set()
        for thread in threads:
            thread.join()
        scorer.refresh()
        assert scorer.failure is None
        assert scorer.number == 25
    assert not mixed
    assert reads[0] > 20


def test_unknown_key_then_has_the_initial_values(tmp_path):
    initial = {"kind": "normal", "scale": 0.1, "seed": 7, "begin": 1, "end": 3}
    export(tmp_path, KEYS, initial=initial)
    result, present = Scorer(str(tmp_path)).lookUp([[2, 3], [5, 5]])
    assert present.tolist() == [[True, False], [False, False]]
    np.testing.assert_array_equal(result[0, 0], values_of([2])[0])
    np.testing.assert_array_equal(result[1, 0], result[1, 1])
    assert result[1, 0, 0] == 0
    assert result[1, 0, 1:].all()
    assert (result[0, 1] != result[1, 0]).sum() == 2


@pytest.mark.parametrize(
    ("keys", "error", "text"),
    [
        ([-3], OutOfRangeError, "got -3"),
        (np.array([2**63], np.uint64), OutOfRangeError, "9223372036854775808"),
        ([0.5], DTypeError, "got float64"),
    ],
)
def test_keys_when_wrong_then_named(tmp_path, keys, error, text):
    export(tmp_path, KEYS)
    with pytest.raises(error, match=text):
        Scorer(str(tmp_path)).vectors(keys)


def test_table_when_scored_then_refused(tmp_path):
    export(tmp_path, KEYS)
    with pytest.raises(UsageError, match="this export is a table"):
        Scorer(str(tmp_path)).score([{"a": 1}])


def test_kind_when_unknown_then_named(tmp_path):
    export(tmp_path, KEYS, kind="oracle")
    with pytest.raises(UsageError, match="got 'oracle'"):
        Scorer(str(tmp_path))


@pytest.mark.parametrize(
    "description",
    [{"kind": "fm"}, {"kind": "deepfm"}, {"initial": {"shape": 1}}, {"kind": "fm", "hasher": {"seed": 1}}],
)
def test_export_when_it_is_of_no_model_then_is_not_taken(tmp_path, description):
    export(tmp_path, KEYS)
    scorer = Scorer(str(tmp_path))
    export(tmp_path, KEYS, **description)
    with pytest.raises(CheckpointCorruptError, match="export 2 does not describe a model"):
        scorer.refresh()
    np.testing.assert_array_equal(scorer.vectors([4]), values_of([4]))


@pytest.mark.parametrize("seconds", [0, -1, True, "1", float("nan"), float("inf")])
def test_refresh_seconds_when_wrong_then_refused(tmp_path, seconds):
    export(tmp_path, KEYS)
    with pytest.raises(ConfigError, match="refreshS"):
        Scorer(str(tmp_path), refreshS=seconds)


def test_refresh_when_memory_is_out_once_then_goes_on(tmp_path, monkeypatch):
    export(tmp_path, KEYS)
    load, failures, refreshed = loading.load, [], threading.Event()

    def load_later(*arguments):
        failures.append(scorer.failure)
        if len(failures) == 1:
            raise MemoryError
        result = load(*arguments)
        refreshed.set()
        return result

    with Scorer(str(tmp_path), refreshS=0.01) as scorer:
        monkeypatch.setattr("ps2.serving.scorer.load", load_later)
        export(tmp_path, KEYS, 1)
        assert refreshed.wait(20)
    assert failures[0] is None
    assert "MemoryError" in str(failures[1])
    assert scorer.number == 2


@pytest.fixture
def deep(tmp_path):
    """A DeepFM of three fields, exported without a fleet, and its scorer."""
    created = Architecture("deepfm", k=WIDTH - 1, fields=3, deep=3, hidden=(4,))
    layers = {layer.name: w for layer, w in zip(created.layers(), created.initial(1), strict=True)}
    export(tmp_path, KEYS[:500], shift=-6, kind="deepfm", config={"architecture": created.to_json()}, dense=layers)
    return Scorer(str(tmp_path))


def test_rows_in_any_form_then_have_the_same_scores(deep):
    keys = [[2, 4, 6], [8, 10, 1]]
    fields = np.tile(np.arange(3, dtype=np.int32), 2)
    rows = KeyRows(np.array([0, 3, 6]), np.ravel(keys), np.ones(6, np.float32), fields)
    result = deep.score(rows)
    assert result.shape == (2,)
    assert ((result > 0) & (result < 1)).all(), result
    np.testing.assert_array_equal(deep.score(keys), result)
    np.testing.assert_array_equal(deep.score(np.array(keys)), result)
    np.testing.assert_array_equal(deep.score([]), [])


@pytest.mark.parametrize(
    ("rows", "error", "text"),
    [
        ([{"a": 1}], UsageError, "takes keys, not columns"),
        ([[1, 2, 3], "x"], DTypeError, "got 'x'"),
        ([[1, -2, 3]], OutOfRangeError, "got -2"),
        ([[1, 2.5, 3]], DTypeError, "got float64"),
        ([[1, 2, [3]]], DTypeError, "lists of equal lengths"),
        ([[1, True, 3]], DTypeError, "got bool"),
        ([[1, -2, 2**63]], OutOfRangeError, "got -2"),
        ([[1, 2, 2**64]], OutOfRangeError, "got 18446744073709551616"),
        ([None], DTypeError, "got None"),
        ([[[1, 2], [3, 4]]], DTypeError, "expected lists of keys"),
        (np.arange(3), ShapeError, "got shape"),
        ([[1, 2, 3, 4]], ShapeError, "fields"),
        (np.ma.array([[1, 2, 3]], mask=[[0, 1, 0]]), UsageError, "keys: expected a plain array, got a masked array"),
    ],
)
def test_rows_when_wrong_then_named(deep, rows, error, text):
    with pytest.raises(error, match=text):
        deep.score(rows)


def test_rows_when_a_value_is_nan_then_refused(deep):
    nan = np.array([np.nan], np.float32)
    with pytest.raises(OutOfRangeError, match="finite"):
        deep.score(KeyRows(np.array([0, 1]), np.array([2]), nan, np.zeros(1, np.int32)))


@pytest.mark.parametrize(
    ("indptr", "keys", "values", "error"),
    [
        ([0, 5], [2, 4], [1, 1], ShapeError),
        ([1, 2], [2, 4], [1, 1], ShapeError),
        ([0, 2, 1, 2], [2, 4], [1, 1], ShapeError),
        ([0, 2], [2, 4], [1], ShapeError),
        ([0, 1], [-2], [1], OutOfRangeError),
        ([0.0, 1.0], [2], [1], DTypeError),
    ],
)
def test_key_rows_when_they_contradict_then_refused(deep, indptr, keys, values, error):
    fields = np.zeros(len(keys), np.int32)
    rows = KeyRows(np.array(indptr), np.array(keys, np.int64), np.array(values, np.float32), fields)
    with pytest.raises(error):
        deep.score(rows)


def exported(path, field):
    """Return the scorer of a DeepFM whose rows have one field of keys."""
    created = Architecture("deepfm", k=WIDTH - 1, fields=field.width or 1, deep=field.width or 1, hidden=(4,))
    layers = {layer.name: w for layer, w in zip(created.layers(), created.initial(1), strict=True)}
    config, hasher = {"architecture": created.to_json()}, FieldHasher((field,), 0).to_json()
    export(path, KEYS[:500], shift=-6, kind="deepfm", config=config, hasher=hasher, dense=layers)
    return Scorer(str(path))


@pytest.mark.parametrize("width", [None, 3])
def test_lists_of_keys_then_scored_as_the_column(tmp_path, width):
    """With ``keysPerRow``, each place in a list is a field; without, all keys are of one field."""
    scorer = exported(tmp_path, Field.keys("ids", width=width))
    result = scorer.score([{"ids": [2, 4, 6]}, {"ids": [8, 10, 1]}])
    np.testing.assert_array_equal(scorer.score([[2, 4, 6], [8, 10, 1]]), result)
    np.testing.assert_array_equal(scorer.score(np.array([[2, 4, 6], [8, 10, 1]])), result)
    if width is None:
        np.testing.assert_array_equal(scorer.score([[2], []]), scorer.score([{"ids": [2]}, {"ids": []}]))
    else:
        with pytest.raises(InputError, match="row 1: expected 3 keys, as in the training rows, got 2"):
            scorer.score([[2, 4, 6], [8, 10]])


def test_lists_of_keys_when_the_model_has_values_then_refused(tmp_path):
    scorer = exported(tmp_path, Field.keys("ids", "amounts"))
    with pytest.raises(UsageError, match=r"expected columns \(ids, amounts\), as dicts or an Arrow batch"):
        scorer.score([[2, 4]])


@pytest.fixture
def clicks(tmp_path):
    """A factorization machine of hashed columns, exported without a fleet: its hasher and its scorer."""
    hasher = FieldHasher((Field.categorical("user"), Field.categorical("item"), Field.numeric("price")), 7)
    known = [{"user": f"u{n}", "item": n, "price": 0.5} for n in range(200)]
    keys = np.unique(hasher.rows_of_dicts(known).keys)
    export(tmp_path, keys, -500, kind="fm", hasher=hasher.to_json(), dense={"bias": np.array([0.25])})
    return hasher, Scorer(str(tmp_path))


def test_dicts_and_batches_then_have_the_same_scores(clicks):
    hasher, scorer = clicks
    rows = [{"user": "u3", "item": 4, "price": 0.001}, {"user": None, "item": 999, "price": None}]
    batch = pa.RecordBatch.from_pylist(rows)
    result = scorer.score(rows)
    np.testing.assert_array_equal(scorer.score(batch), result)
    np.testing.assert_array_equal(scorer.score(pa.table(batch.to_pydict(), batch.schema)), result)
    np.testing.assert_array_equal(scorer.score(hasher.rows(batch)), result)
    assert result[1] == pytest.approx(1 / (1 + np.exp(-0.25)))


def test_rows_when_there_are_none_then_no_scores(clicks):
    hasher, scorer = clicks
    batch = pa.RecordBatch.from_pylist([{"user": "u3", "item": 4, "price": 0.001}]).slice(0, 0)
    untyped = pa.RecordBatch.from_pydict({name: pa.nulls(0) for name in ("user", "item", "price")})
    for rows in ([], batch, untyped, pa.Table.from_batches([batch]), batch.schema.empty_table(), hasher.rows(batch)):
        scores = scorer.score(rows)
        assert (scores.shape, scores.dtype) == ((0,), np.float64)


def test_column_when_missing_then_named(clicks):
    with pytest.raises(InputError, match="item"):
        clicks[1].score([{"user": "u3", "price": 1.0}])


@pytest.mark.parametrize("rows", [[[3, 4, 1]], [[3, 4], [5, 6]], np.array([[3, 4, 1]])])
def test_lists_when_model_takes_columns_then_refused(clicks, rows):
    with pytest.raises(UsageError, match=r"expected columns \(user, item, price\), as dicts or an Arrow batch"):
        clicks[1].score(rows)


def test_rows_when_of_no_kind_then_refused(clicks):
    with pytest.raises(DTypeError, match="got DataFrame"):
        clicks[1].score(pd.DataFrame({"user": ["u3"]}))
