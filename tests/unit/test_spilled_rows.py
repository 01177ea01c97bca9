"""Rows in a file are those in memory, whatever the blocks; and a worker writes them before its memory is full."""

from __future__ import annotations

import os
import pickle
import resource
import signal
import subprocess
import sys
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from ps2.data.block_file import BlockFile
from ps2.data.row_spill import RowSpill, keep_batches
from ps2.data.rows import LocalRows, Rows
from ps2.data.spilled_rows import SpilledRows
from ps2.data.spilling import Memory, Spill, local_folders, max_tasks, worker_folder
from ps2.errors import ConfigError, DTypeError, InputError, OutOfRangeError, SpillError, UsageError

MANY = 1 << 30


def table(rows, columns, density, seed=0, dtype="float64"):
    rng = np.random.default_rng(seed)
    dense = rng.normal(size=(rows, columns)) * (rng.random((rows, columns)) < density)
    x = sp.csr_array(dense.astype(dtype))
    x = sp.csr_array((x.data, x.indices.astype(np.int32), x.indptr.astype(np.int32)), shape=x.shape)
    return Rows(x, rng.integers(0, 2, rows).astype(float), rng.random(rows))


def some(rows, part):
    return Rows(rows.x[part], rows.y[part], rows.weights[part])


def spilled(rows, cuts=(), block_bytes=4096, held_out=None, limit_bytes=MANY):
    spill = RowSpill(Spill("always", limit_bytes, block_bytes), 0, 1)
    for begin, end in zip([0, *cuts], [*cuts, len(rows)], strict=True):
        spill.append(some(rows, slice(begin, end)), None if held_out is None else held_out[begin:end])
    return spill.finish()


def whole(rows):
    """The arrays of all blocks, one after the other."""
    blocks = list(rows.blocks())
    return [
        sp.vstack([block.x for block in blocks]).toarray(),
        *(np.concatenate([getattr(block, name) for block in blocks]) for name in ("y", "weights")),
    ]


def same(found, expected):
    assert found.keys.tolist() == expected.keys.tolist()
    assert len(found) == len(expected)
    for one, other in zip(whole(found), (expected.x.toarray(), expected.y, expected.weights), strict=True):
        assert np.array_equal(one, other)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["float32", "float64", "int32"]), st.integers(0, 3000)), max_size=8))
def test_block_file_when_arrays_appended_then_maps_the_same(given_arrays):
    rng, file = np.random.default_rng(0), BlockFile(local_folders({})[0])
    blocks = [{"a": (rng.normal(size=length) * 99).astype(dtype), "b": np.arange(3)} for dtype, length in given_arrays]
    positions = [file.append(block) for block in blocks]
    for position, block in zip(positions, blocks, strict=True):
        result = file.arrays(position)
        assert all(np.array_equal(result[name], block[name]) for name in ("a", "b"))


def test_block_file_when_a_mapped_array_changes_then_file_stays(tmp_path):
    file = BlockFile(str(tmp_path))
    position = file.append({"a": np.arange(5.0)})
    file.arrays(position)["a"][:] = 7
    assert file.arrays(position)["a"].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("density", "dtype"), [(0.05, "float64"), (0.3, "float32"), (1.0, "float64")])
def test_spilled_rows_when_appended_in_parts_then_as_in_memory(density, dtype):
    rows = table(900, 40, density, dtype=dtype)
    rows = Rows(sp.csr_array((rows.x.data, rows.x.indices * 3, rows.x.indptr), shape=(900, 120)), rows.y, rows.weights)
    result, held = spilled(rows, cuts=(1, 1, 640))
    assert len(result.stored.blocks) > 3
    same(result, rows.localize())
    assert len(held) == 0


def test_spilled_rows_when_dense_then_only_values_are_stored():
    rows = table(500, 30, 1.0)
    result, _ = spilled(rows)
    assert 500 * 8 * 32 <= result.nbytes < 500 * 8 * 34
    same(result, rows.localize())


def test_spilled_rows_when_some_are_held_out_then_same_keys():
    rows = table(300, 50, 0.02)
    mask = np.random.default_rng(1).random(300) < 0.3
    training, held = spilled(rows, cuts=(150,), held_out=mask)
    local = rows.localize()
    same(training, local.chosen(np.flatnonzero(~mask)))
    same(held, local.chosen(np.flatnonzero(mask)))


@pytest.mark.parametrize("limit_bytes", [0, MANY])
def test_sample_when_rows_are_in_a_file_then_same_minibatch(limit_bytes):
    rows = table(2000, 300, 0.005)
    result, _ = spilled(rows, limit_bytes=limit_bytes)
    sampled, expected = (one.sample(0.1, np.random.default_rng(5)) for one in (result, rows.localize()))
    assert isinstance(sampled, LocalRows if limit_bytes else SpilledRows)
    assert len(expected.keys) < len(result.keys)
    same(sampled, expected)
    same(sampled.chosen([0, 7, 50]), expected.chosen([0, 7, 50]))


def test_chosen_when_numbers_do_not_ascend_then_out_of_range():
    result, _ = spilled(table(20, 5, 1.0))
    with pytest.raises(OutOfRangeError, match="ascending row numbers without duplicates, got 2 after 3"):
        result.chosen([1, 3, 2])
    with pytest.raises(OutOfRangeError, match=r"numbers in \[0, 20\), got 3 to 20"):
        result.chosen([3, 20])


@pytest.mark.parametrize("place", ["memory", "file"])
@pytest.mark.parametrize("method", ["take", "chosen"])
def test_rows_when_chosen_by_a_mask_then_dtype_error(place, method):
    rows = table(3, 5, 1.0)
    result = spilled(rows)[0] if place == "file" else rows.localize()
    with pytest.raises(DTypeError, match="expected integer row numbers, got bool"):
        getattr(result, method)([True, False, True])


def test_rows_in_a_file_when_pickled_then_usage_error():
    result, _ = spilled(table(20, 5, 1.0))
    with pytest.raises(UsageError, match="stay in the process that wrote them"):
        pickle.dumps(result)


def test_row_spill_when_auto_then_due_above_the_limit_only():
    spill = RowSpill(Spill("auto", 1000, 100), 0, 1)
    assert [spill.is_due(1000), spill.is_due(1001)] == [False, True]
    spill.append(table(10, 5, 1.0))
    assert [spill.is_due(100), spill.is_due(101)] == [False, True]
    assert not RowSpill(Spill("never", 0), 0, 1).is_due(MANY)


@pytest.mark.parametrize(
    ("memory", "tasks", "expected"),
    [
        (Memory(None, None, 1000), 4, 250),
        (Memory(None, 400, 1000), 4, 100),
        (Memory(50, 400, 1000), 4, 50),
        (Memory(500, 4000, 1000), 1, 500),
    ],
)
def test_memory_of_worker_when_limits_differ_then_the_least(memory, tasks, expected):
    assert memory.worker_bytes(tasks) == expected


def test_folders_when_there_are_several_then_ranks_take_turns(tmp_path):
    folders = local_folders({"SPARK_LOCAL_DIRS": f"{tmp_path}/gone,{tmp_path},/tmp"})
    assert folders == [f"{tmp_path}/gone", str(tmp_path), "/tmp"]
    assert [worker_folder(rank, folders) for rank in range(3)] == [str(tmp_path), "/tmp", str(tmp_path)]
    assert [max_tasks(1, 8), max_tasks(100, 8)] == [1, 16]


@pytest.mark.parametrize("mode", ["never", "always"])
def test_keep_batches_when_kept_either_way_then_same_rows(mode):
    rng = np.random.default_rng(6)
    columns = {name: rng.normal(size=400) for name in ("a", "b", "label")}
    batch = pa.RecordBatch.from_pydict({**columns, "c": np.abs(columns["a"])})
    spill = RowSpill(Spill(mode, MANY, 4096), 0, 1)
    kept = keep_batches([batch, batch], ["a", "b"], "label", "c", "float64", spill)
    assert isinstance(kept, LocalRows if mode == "never" else SpilledRows)
    same(kept, Rows.fromBatches([batch, batch], ["a", "b"], "label", "c").localize())


def test_keep_batches_when_a_later_batch_is_wrong_then_names_row():
    fine, wrong = (pa.RecordBatch.from_pydict({"a": [1.0, 2.0], "label": [0.0, y]}) for y in (1.0, np.nan))
    with pytest.raises(InputError, match="column 'label', row 3"):
        keep_batches([fine, wrong], ["a"], "label", None, "float64", RowSpill(Spill("always"), 0, 1))


def test_spill_when_mode_is_unknown_then_config_error():
    with pytest.raises(ConfigError, match="spill: expected one of auto, always, never, got 'disk'"):
        Spill("disk")


@contextmanager
def largest_file(size):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_append_when_disk_is_full_then_names_folder_and_bytes(tmp_path):
    file = BlockFile(str(tmp_path))
    file.append({"a": np.zeros(1000)})
    with largest_file(20000), pytest.raises(SpillError) as error:
        file.append({"a": np.zeros(10000)})
    assert os.fstat(file._fd).st_size <= 8192
    text = str(error.value)
    assert f"8,192 bytes of rows are in a file in {tmp_path}" in text
    assert "80,000 more bytes do not fit" in text
    assert "bytes are free there" in text


def test_file_array_when_a_slice_changes_then_the_file_does(tmp_path):
    file = BlockFile(str(tmp_path))
    file.append({"a": np.ones(5)})
    array = file.reserve(10_000, np.int32)
    array[1500:1502][:] = [3, 4]
    array[9_999:][:] = 5
    assert (array[1499:1503].tolist(), array[9_998:].tolist(), len(array)) == ([0, 3, 4, 0], [0, 5], 10_000)
    assert len(array[7:7]) == 0


def test_file_array_when_disk_is_full_then_error_names_it(tmp_path):
    file = BlockFile(str(tmp_path))
    file.append({"a": np.ones(5)})
    with largest_file(20000), pytest.raises(SpillError, match=r"80,000 more bytes do not fit"):
        file.reserve(10_000, np.float64)
    assert file.append({"a": np.ones(5)}).offset == 4096


def test_block_file_when_folder_is_missing_then_spill_error(tmp_path):
    with pytest.raises(SpillError, match=r"cannot be stored in a file in .*/gone"):
        BlockFile(f"{tmp_path}/gone")


WRITES_AND_WAITS = """
import sys, numpy as np
from ps2.data.block_file import BlockFile
file = BlockFile(sys.argv[1])
for _ in range(8):
    file.append({"a": np.ones(1 << 20)})
print("written", flush=True)
sys.stdin.read()
"""


def test_file_when_process_is_killed_then_disk_is_free_again(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", WRITES_AND_WAITS, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout.readline() == b"written\n"
        (link,) = [path for path in os.scandir(f"/proc/{process.pid}/fd") if str(tmp_path) in os.readlink(path)]
        assert os.stat(link).st_nlink == 0
        assert os.stat(link).st_size == 64 << 20
        assert os.listdir(tmp_path) == []
        process.send_signal(signal.SIGKILL)
    assert os.listdir(tmp_path) == []


READS = """
import resource, sys
import numpy as np, psutil, pyarrow as pa
from ps2.algorithms.linear.losses import loss_of
from ps2.algorithms.linear.plan import Problem
from ps2.algorithms.training.faults import ColumnNames, Form
from ps2.algorithms.training.reading import read_spillable
from ps2.data.row_spill import keep_batches
from ps2.data.row_spill import RowSpill
from ps2.data.spilling import Spill

values = pa.array(np.ones(2000 * 100))
features = pa.ListArray.from_arrays(np.arange(2001) * 100, values)
batch = pa.RecordBatch.from_pydict({"features": features, "label": np.arange(2000) % 2.0})
loss, form = loss_of(Problem("logistic", 100)), Form(100, 2)

def gradient(batches, mode):
    spill = RowSpill(Spill(mode), 0, 1)
    rows = read_spillable((batch for _ in range(batches)), ColumnNames(), form, spill).training
    return type(rows).__name__, len(rows), loss.gradient(rows, np.zeros(100), np.zeros(1)).weight

gradient(2, "always")
room = 160 << 20
resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + room,) * 2)
print(*gradient(150, sys.argv[1]))
"""


@pytest.mark.parametrize("mode", ["never", "auto"])
def test_read_when_rows_exceed_address_space_then_a_file_saves(mode):
    # 240 MB of values, in 160 MB (spark.executor.pyspark.memory sets the same limit).
    finished = subprocess.run([sys.executable, "-c", READS, mode], capture_output=True, text=True, check=False)
    if mode == "never":
        assert "MemoryError" in finished.stderr
    else:
        assert finished.stdout.split() == ["SpilledRows", "300000", "300000.0"], finished.stderr
