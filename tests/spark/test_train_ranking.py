"""``ps2 train gbt --task ranking``: files of queries, the rows that are held out, and the results of the command."""

from __future__ import annotations

import json

import numpy as np
import pytest

from ps2.algorithms import GBTModel, GBTRankerModel
from ps2.algorithms.text import queries
from ps2.algorithms.text.measures import held_out
from ps2.errors import InputError
from tests.commands import assert_one_line
from tests.rankings import mean_ndcg
from tests.rankings import queries as ranked_rows

OPTIONS = ["--task", "ranking", "--trees", 4, "--depth", 3, "--via", "local"]


@pytest.fixture
def write(tmp_path):
    def write(text, name="rows.txt"):
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return write


def libsvm_lines(x, y, query, with_query=True):
    """The lines of rows; without ``with_query``, as LightGBM reads them."""
    rows = zip(x.tolist(), y.tolist(), query.tolist(), strict=True)
    return [
        f"{label:g} " + f"qid:{q} " * with_query + " ".join(f"{i + 1}:{v:g}" for i, v in enumerate(row)) + "\n"
        for row, label, q in rows
    ]


def collected(table):
    return [(row.label, row.query, row.features.toArray().tolist()) for row in table.frame.collect()]


def test_read_when_lines_have_queries_then_rows_are_exact(spark, write):
    path = write(f"# x\n2 qid:{2**60 + 1} 1:.3 3:1e-3 # doc\n\n\t0  qid:{2**60}\t2:5\r\n31.0 qid:{2**60 + 1}\n")
    assert queries.count_features(spark, path) == 3
    first, second = 2**60 + 1, 2**60
    expected = [(2.0, first, [0.3, 0, 1e-3]), (0.0, second, [0, 5, 0]), (31.0, first, [0, 0, 0])]
    table = queries.read(spark, path, 3)
    assert (collected(table), len(table)) == (expected, 3)


def test_read_when_value_is_nan_then_it_is_missing(spark, write):
    ((_, _, features),) = collected(queries.read(spark, write("1 qid:1 1:NaN 2:-0.1\n"), 2))
    np.testing.assert_array_equal(features, [np.nan, -0.1])


def test_read_when_sizes_are_beside_then_they_make_queries(spark, write):
    write("2\n1\n3\n", "rows.txt.query")
    path = write("# six rows\n" + "".join(f"{n % 2} 1:{n}\n" for n in range(6)))
    assert [row[1] for row in collected(queries.read(spark, path, 1))] == [0, 0, 1, 2, 2, 2]


@pytest.mark.parametrize(
    ("sizes", "error"),
    [
        ("2\n2\n", "rows.txt.query: expected numbers of rows with the sum 3, as .*rows.txt has rows, got the sum 4"),
        ("2\n0\n", "rows.txt.query: line 2: expected a query's number of rows, from 1 on, got '0'"),
    ],
)
def test_read_when_sizes_do_not_fit_then_error(spark, write, sizes, error):
    write(sizes, "rows.txt.query")
    with pytest.raises(InputError, match=error):
        queries.read(spark, write("1 1:1\n0 1:2\n1 2:1\n"), 2)


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("1 2:1", "query: expected qid:"),
        ("40 qid:1 2:1", "label: expected a relevance"),
        ("1 qid:1 2:1 2:2", "index: expected an integer above 2"),
        ("1 qid:1 3:1", "index: expected an integer from 1 on, 2 at most"),
        ("1 qid:1 1:1e400", "value: expected a number"),
    ],
)
def test_read_when_line_is_bad_then_names_file_and_line(spark, write, line, error):
    with pytest.raises(InputError, match=rf"rows.txt: line 2: {error}"):
        queries.read(spark, write(f"1 qid:1 2:1\n{line}\n0 qid:2\n"), 2)


def test_read_when_there_is_no_row_then_error(spark, write):
    with pytest.raises(
        InputError, match=r"rows.txt: expected lines 'label qid:query index:value ...', got no row at all"
    ):
        queries.read(spark, write("# nothing\n\n"), 1)


def test_held_out_when_rows_have_queries_then_none_is_split(spark):
    rows = spark.range(300).selectExpr("id % 40 AS query", "id AS label", "id AS features")
    parts = held_out(rows, 0.3, 0, "held").select("query", "held").distinct().collect()
    assert len(parts) == 40
    assert 0 < sum(row["held"] for row in parts) < 40


@pytest.fixture(scope="module")
def trained(run_train, tmp_path_factory):
    """The folder, and the results of the command, as JSON; rows of a query are not side by side."""
    folder = tmp_path_factory.mktemp("ranking")
    lines = libsvm_lines(*ranked_rows())
    (folder / "train").write_text("".join(lines[::2] + lines[1::2]))
    (folder / "test").write_text("".join(lines))
    files = ["--input", folder / "train", "--test", folder / "test", "--output", folder / "model"]
    evaluation = ["--validation", 0.3, "--metric", "ndcg@10", "--early-stopping", 4]
    code, stdout, stderr = run_train("gbt", *files, *OPTIONS, *evaluation, "-o", "json")
    assert code == 0, stderr
    return folder, json.loads(stdout)


def test_ranking_when_trained_then_ndcg_of_held_out_is_measured(trained):
    measures = trained[1]["measures"]
    best = max(step["validation"] for step in trained[1]["trees"])
    assert measures["held out"]["ndcg@10"] == pytest.approx(best)
    assert 0 < measures["held out"]["queries"] < measures["train"]["queries"] == 31


def test_ranking_when_saved_then_model_ranks_as_measured(trained):
    folder, results = trained
    x, y, query = ranked_rows()
    ndcg = mean_ndcg(GBTModel.load(str(folder / "model")).predict(x), y, query)
    assert results["measures"]["test"]["ndcg@10"] == pytest.approx(ndcg)
    assert GBTRankerModel.load(str(folder / "model")).getGroupCol() == "query"


def test_ranking_when_sizes_are_beside_then_same_trees(run_train, tmp_path):
    x, y, query = ranked_rows()
    sizes = np.diff(np.append(np.flatnonzero(np.append(True, query[1:] != query[:-1])), len(query)))
    written = {"qid": True, "sized": False}
    for name, with_query in written.items():
        (tmp_path / name).write_text("".join(libsvm_lines(x, y, query, with_query)))
    (tmp_path / "sized.query").write_text("".join(f"{size}\n" for size in sizes))
    models = []
    for name in written:
        output = ["--output", tmp_path / f"{name} model", "--save-xgboost", tmp_path / f"{name}.json"]
        code, _, stderr = run_train("gbt", "--input", tmp_path / name, *OPTIONS, *output)
        assert code == 0, stderr
        models.append((tmp_path / f"{name}.json").read_text())
    assert models[0] == models[1]


def test_gbt_when_classes_have_queries_then_task_is_named(run_train, tmp_path, write):
    code, _, stderr = run_train("gbt", "--input", write("1 qid:1 2:1\n"), "--output", tmp_path / "model")
    assert_one_line(stderr)
    assert (code, "got the query 'qid:1', which ps2 train gbt --task ranking reads" in stderr) == (1, True), stderr


def test_ranking_when_no_query_is_held_out_then_error(run_train, tmp_path, write):
    files = ["--input", write("1 qid:1 1:1\n0 qid:1 1:2\n"), "--output", tmp_path / "model"]
    code, _, stderr = run_train("gbt", *files, *OPTIONS, "--validation", 1e-6)
    assert_one_line(stderr)
    assert (code, "--validation: expected a fraction that holds out a query, got 1e-06" in stderr) == (1, True), stderr
