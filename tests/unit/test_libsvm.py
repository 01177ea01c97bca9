"""LIBSVM text becomes the arrays that a plain Python loop makes of it, and a malformed line is named."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ps2.algorithms import libsvm
from ps2.algorithms.libsvm import MAX_INDEX, Block, MalformedLine, parse
from ps2.errors import DTypeError, InputError


def reference(lines: list[bytes], values_dtype: str) -> Block:
    """Parse one token at a time with Python's own numbers."""
    labels, lengths, indices, values = [], [], [], []
    for line in lines:
        tokens = line.split(b"#")[0].split()
        if tokens:
            labels.append(float(tokens[0]))
            lengths.append(len(tokens) - 1)
            pairs = [token.split(b":") for token in tokens[1:]]
            indices += [int(index) - 1 for index, _ in pairs]
            values += [float(value) for _, value in pairs]
    indptr = np.cumsum([0, *lengths]).astype(np.int64)
    return Block(np.array(labels, np.float64), indptr, np.array(indices, np.int64), np.array(values, values_dtype))


def assert_same(came: Block, expected: Block) -> None:
    for name in ("labels", "indptr", "indices", "values"):
        a, b = getattr(came, name), getattr(expected, name)
        assert a.dtype == b.dtype, name
        assert a.tobytes() == b.tobytes(), name


# Within float32, so that the same text is valid for both dtypes.
_floats = st.floats(-1e38, 1e38, allow_nan=False, allow_infinity=False)
numbers = st.one_of(
    _floats.map(repr),
    _floats.map("{:.3e}".format),
    _floats.map("{:+.17E}".format),
    st.floats(-100, 100).map("{:.25f}".format),
    st.integers(-(10**30), 10**30).map(str),
    st.sampled_from(
        ["0", "-0", "+1", ".5", "5.", "-.5e-3", "1E+2", "0e999999999", "007", "9007199254740993", "5e-324"]
    ),
    st.from_regex(r"[+-]?[0-9]{1,25}\.[0-9]{1,25}(e[+-]?[01]?[0-9])?", fullmatch=True).filter(
        lambda text: abs(float(text)) < 1e38
    ),
)
blanks = st.sampled_from([" ", "  ", "\t", " \t "])
comments = st.sampled_from(["", "", "# note 1:2", "#", "# \u00e9:x"])
line_ends = st.sampled_from(["", "\n", "\r\n", " \n", "\r"])


@st.composite
def rows(draw: st.DrawFn) -> bytes:
    indices = draw(st.lists(st.one_of(st.integers(1, 40), st.integers(1, MAX_INDEX)), max_size=12, unique=True))
    text = draw(numbers)
    for index in indices:
        text += f"{draw(blanks)}{index}:{draw(numbers)}"
    return (draw(st.sampled_from(["", " "])) + text + draw(comments) + draw(line_ends)).encode()


empty_lines = st.builds(lambda blank, comment, end: (blank + comment + end).encode(), blanks, comments, line_ends)
files = st.lists(st.one_of(rows(), rows(), rows(), empty_lines), max_size=12)


@settings(deadline=None)
@given(lines=files, values_dtype=st.sampled_from(["float32", "float64"]))
def test_parse_when_file_is_valid_then_equals_the_python_loop(lines: list[bytes], values_dtype: str) -> None:
    assert_same(parse(lines, values_dtype=values_dtype), reference(lines, values_dtype))


@settings(deadline=None)
@given(lines=files, batch_bytes=st.integers(1, 200))
def test_parse_when_text_spans_batches_then_equals_the_python_loop(lines: list[bytes], batch_bytes: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(libsvm, "BATCH_BYTES", batch_bytes)
        assert_same(parse(lines), reference(lines, "float32"))


def test_parse_when_given_an_iterator_then_reads_it_once() -> None:
    assert parse(iter([b"1 1:2", b"0 2:3"])).indices.tolist() == [0, 1]


def test_parse_when_there_are_no_lines_then_block_is_empty() -> None:
    block = parse([])
    assert block.indptr.tolist() == [0]
    assert (len(block.labels), len(block.indices), len(block.values)) == (0, 0, 0)


def test_parse_when_row_has_only_a_label_then_row_is_empty() -> None:
    assert parse([b"+1 \n", b"-1 3:1 \n"]).indptr.tolist() == [0, 0, 1]


def test_parse_when_index_is_the_largest_then_it_is_kept_exactly() -> None:
    assert parse([b"1 %d:1" % MAX_INDEX]).indices.tolist() == [MAX_INDEX - 1]


def test_parse_when_indices_are_unordered_then_order_is_kept() -> None:
    assert parse([b"1 9:1 2:2 5:3"]).indices.tolist() == [8, 1, 4]


def test_parse_when_rows_share_an_index_then_it_is_no_repeat() -> None:
    assert parse([b"1 5:1", b"1 5:1 2:1", b"1 2:1"]).indices.tolist() == [4, 4, 1, 1]


def test_parse_when_pickled_then_block_is_the_same() -> None:
    block = parse([b"1 1:2 5:.25"])
    assert_same(pickle.loads(pickle.dumps(block)), block)


def test_parse_when_values_dtype_is_unknown_then_dtype_error() -> None:
    with pytest.raises(DTypeError, match="expected 'float32' or 'float64', got 'int64'"):
        parse([b"1 1:1"], values_dtype="int64")


MALFORMED = {
    b"1 2:x": "value: expected a number, got 'x' in '2:x'",
    b"1 2:": "value: expected a number, got '' in '2:'",
    b"1 2: 5": "value: expected a number, got '' in '2:'",
    b"1 2:3:4": "value: expected a number, got '3:4' in '2:3:4'",
    b"1 2:1e": "value: expected a number, got '1e' in '2:1e'",
    b"1 2:1e+": "value: expected a number, got '1e+' in '2:1e+'",
    b"1 2:0x10": "value: expected a number, got '0x10' in '2:0x10'",
    b"1 2:1_0": "value: expected a number, got '1_0' in '2:1_0'",
    b"1 2:--1": "value: expected a number, got '--1' in '2:--1'",
    b"1 2:.": "value: expected a number, got '.' in '2:.'",
    b"1 2:\x001": r"value: expected a number, got '\x001' in '2:\x001'",
    b"1 2:\xe9": r"value: expected a number, got '\\xe9' in '2:\\xe9'",
    b"1 2:nan": "value: expected a finite number, got 'nan' in '2:nan'",
    b"1 2:-Infinity": "value: expected a finite number, got '-Infinity' in '2:-Infinity'",
    b"1 2:1 3:1e400": "value: expected a finite float32, got '3:1e400'",
    b"1 2:1 3:+1e39": "value: expected a finite float32, got '3:+1e39'",
    b"1 2": "feature: expected index:value, got '2' without ':'",
    b"1 2:1 three": "feature: expected index:value, got 'three' without ':'",
    b"1 2:1\n0 3:1": "feature: expected index:value, got '0' without ':'",
    b"1 0:1": "index: expected at least 1, got '0'",
    b"1 -3:1": "index: expected at least 1, got '-3'",
    b"1 2.5:1": "index: expected an integer, got '2.5' in '2.5:1'",
    b"1 :1": "index: expected an integer, got '' in ':1'",
    b"1 qid:1 2:1": "index: expected an integer, got 'qid' in 'qid:1'",
    b"1 %d:1" % (MAX_INDEX + 1): f"index: expected at most {MAX_INDEX}, got '9223372036854775808'",
    b"1 " + b"9" * 5000 + b":1": f"index: expected at most {MAX_INDEX}, got '{'9' * 40}...'",
    b"1 7:1 7:2": "index: expected each index once in a row, got 7 again",
    b"1 7:1 3:1 9:1 3:2 # 7": "index: expected each index once in a row, got 3 again",
    b"2:1 3:1": "label: expected a number before the first feature, got the feature '2:1'",
    b"spam 2:1": "label: expected a number, got 'spam'",
    b"1,2 2:1": "label: expected a number, got '1,2'",
    b"\x00": r"label: expected a number, got '\x00'",
    b"inf 2:1": "label: expected a finite number, got 'inf'",
    b"NaN": "label: expected a finite number, got 'NaN'",
    b"-1e999 2:1": "label: expected a finite float64, got '-1e999'",
}


@pytest.mark.parametrize("batch_bytes", [1, libsvm.BATCH_BYTES])
@pytest.mark.parametrize("text", list(MALFORMED), ids=lambda text: repr(text[:24]))
def test_parse_when_a_line_is_malformed_then_names_it(
    text: bytes, batch_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(libsvm, "BATCH_BYTES", batch_bytes)
    lines = [b"1 1:1\n", b"\n", b"# note\n", b"0 1:0.12345678901234567890 # 2:x\n", text + b"\r\n", b"broken too\n"]
    with pytest.raises(MalformedLine) as caught:
        parse(lines)
    assert (caught.value.line, caught.value.reason) == (4, MALFORMED[text])


@pytest.mark.parametrize("first", [b"1 1:1e400", b"1e400 1:1", b"1 1:1 1:1", b"1 1:1 2:x", b"x"])
@pytest.mark.parametrize("second", [b"1 1:1e400", b"1e400 1:1", b"1 1:1 1:1", b"1 1:1 2:x", b"x"])
def test_parse_when_two_lines_are_malformed_then_names_the_first(first: bytes, second: bytes) -> None:
    with pytest.raises(MalformedLine) as caught:
        parse([b"", first, second])
    assert caught.value.line == 1


def test_parse_when_value_exceeds_float32_then_float64_takes_it() -> None:
    assert parse([b"1 1:1e39"], values_dtype="float64").values.tolist() == [1e39]


def test_malformed_line_when_pickled_then_keeps_line_and_reason() -> None:
    error = pickle.loads(pickle.dumps(MalformedLine(7, "label: expected a number, got 'x'")))
    assert isinstance(error, MalformedLine)
    assert isinstance(error, InputError)
    assert (error.line, error.reason) == (7, "label: expected a number, got 'x'")
    assert str(error) == "line 7 (counted from 0): label: expected a number, got 'x'"
