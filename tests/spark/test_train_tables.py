"""``ps2 train`` for rows of features, on CSV and Parquet files with named columns."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from pyspark.ml import PipelineModel

from ps2.algorithms import GBTRankerModel, GBTRegressionModel, KMeansModel, LogisticRegressionModel
from tests.commands import assert_one_line

ROWS = 300


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A table as Parquet and as CSV; a row in 20 of the CSV file lacks a number."""
    folder, rng = tmp_path_factory.mktemp("tables"), np.random.default_rng(0)
    x, kind = rng.normal(size=(2, ROWS)), rng.integers(0, 4, ROWS)
    columns = {"id": [f"r{n}" for n in range(ROWS)], "bought": x[0] > 0, "x1": x[0], "x2": x[1], "kind": kind}
    table = pa.table({**columns, "price": np.array([5.0, -3.0, 8.0, 1.0])[kind] + x[0], "w": rng.random(ROWS) + 0.1})
    pq.write_table(table, folder / "rows.parquet")
    missing = pa.array(x[1], mask=np.arange(ROWS) % 20 == 0)
    numbers = table.set_column(3, "x2", missing).drop_columns(["id", "bought"])
    pacsv.write_csv(numbers, folder / "rows.csv")
    texts = [["north", "south", "east, far", None][k] for k in kind]
    (answers := table.set_column(4, "kind", [texts])).validate()
    pq.write_table(answers.append_column("sold", [["yes" if k > 1 else "no" for k in kind]]), folder / "texts.parquet")
    pacsv.write_csv(pq.read_table(folder / "texts.parquet"), folder / "texts.csv")
    (folder / "other.csv").write_text("sold,x1,kind\nyes,1.5,west\nno,0.5,south\n")
    (folder / "word.csv").write_text("price,x1\n1,2\n3,cheap\n")
    return folder


@pytest.fixture
def train(run_train, tmp_path):
    """``train(command, *options)``: run a command of ``ps2 train``; see ``run_train``."""
    return lambda command, *options: run_train(command, "--output", tmp_path / "model", *options, "-o", "json")


@pytest.mark.usefixtures("spark")
def test_lr_when_parquet_has_names_then_model_predicts_table(train, files, tmp_path, spark):
    options = ["--label", "bought", "--features", "x*", "--weight", "w", "--test", files / "rows.parquet"]
    code, stdout, stderr = train("lr", "--input", files / "rows.parquet", *options, "--steps", 30)
    assert (code, stderr) == (0, "")
    record = json.loads(stdout)
    assert (record["rows"], record["features"], record["measures"]["test"]["accuracy"] > 0.9) == (ROWS, 2, True)
    model = LogisticRegressionModel.load(str(tmp_path / "model"))
    assert (model.getFeaturesCols(), model.getWeightCol()) == (["x1", "x2"], "w")
    frame = model.transform(spark.read.parquet(str(files / "rows.parquet")))
    assert frame.where("prediction = cast(bought as double)").count() > 0.9 * ROWS


@pytest.mark.usefixtures("spark")
def test_gbt_when_csv_has_categories_then_splits_by_them(train, files, tmp_path):
    options = ["--label", "price", "--weight", "w", "--categories", "kind", "--task", "regression", "--trees", 20]
    code, stdout, stderr = train("gbt", "--input", files / "rows.csv", *options, "--validation", 0.2)
    assert (code, stderr) == (0, "")
    assert json.loads(stdout)["measures"]["train"]["rmse"] < 1
    model = GBTRegressionModel.load(str(tmp_path / "model"))
    assert model.getFeaturesCols() == ["x1", "x2", "kind"]
    assert int(np.argmax(model.featureImportances.toArray())) == 2


@pytest.mark.parametrize("file", ["texts.csv", "texts.parquet"])
def test_gbt_when_categories_are_text_then_saves_a_pipeline(train, files, tmp_path, spark, file):
    """Rows to test on may have texts that are new, and a saved pipeline reads the texts of a table."""
    options = [
        "--label",
        "sold",
        "--features",
        "x1",
        "--categories",
        "kind",
        "--test",
        files / "other.csv",
        "--trees",
        5,
    ]
    code, stdout, stderr = train("gbt", "--input", files / file, *options)
    assert (code, stderr) == (0, "")
    record = json.loads(stdout)
    assert (record["classes"], record["measures"]["train"]["accuracy"]) == (["no", "yes"], 1.0)
    assert record["measures"]["test"]["rows"] == 2
    model = PipelineModel.load(str(tmp_path / "model"))
    frame = model.transform(spark.read.parquet(str(files / "texts.parquet")))
    assert frame.where("(prediction = 1) = (sold = 'yes')").count() == ROWS


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_ranker_when_rows_are_a_table_then_groups_them(train, files, tmp_path, spark, suffix):
    table = pq.read_table(files / "rows.parquet").select(["x1", "x2"])
    queries = [f"q{n % 20}" for n in range(ROWS)]
    relevance = np.clip(np.round(table["x1"].to_numpy() + 1), 0, 3)
    table = table.append_column("query", [queries]).append_column("relevance", [relevance])
    path = tmp_path / f"ranked.{suffix}"
    (pq.write_table if suffix == "parquet" else pacsv.write_csv)(table, path)
    options = ["--task", "ranking", "--group", "query", "--label", "relevance", "--trees", 10, "--validation", 0.3]
    code, stdout, stderr = train("gbt", "--input", path, *options)
    assert (code, stderr) == (0, "")
    measures = json.loads(stdout)["measures"]
    assert (measures["train"]["queries"], measures["train"]["ndcg@10"] > 0.9) == (20, True)
    assert 0 < measures["held out"]["queries"] < 20
    assert GBTRankerModel.load(str(tmp_path / "model")).getGroupCol() == "query"


@pytest.mark.usefixtures("spark")
def test_forest_when_labels_are_numbers_then_measures_all_rows(train, files):
    options = ["--task", "regression", "--label", "price", "--features", "x1,kind", "--trees", 5]
    code, stdout, stderr = train("forest", "--input", files / "rows.parquet", *options)
    assert (code, stderr) == (0, "")
    record = json.loads(stdout)
    assert record["rows"] == record["measures"]["train"]["rows"] == ROWS
    assert record["measures"]["train"]["loss"] == pytest.approx(record["measures"]["train"]["rmse"] ** 2)


@pytest.mark.usefixtures("spark")
def test_kmeans_when_no_features_are_named_then_all_numbers(train, files, tmp_path):
    code, stdout, stderr = train("kmeans", "--input", files / "rows.parquet", "--weight", "w", "--k", 3)
    assert (code, stderr) == (0, "")
    model = KMeansModel.load(str(tmp_path / "model"))
    assert model.getFeaturesCols() == ["bought", "x1", "x2", "kind", "price"]
    assert len(json.loads(stdout)["sizes"]) == 3


@pytest.mark.parametrize(
    ("file", "options", "expected"),
    [
        ("rows.parquet", ["--features", "id,x1"], "column 'id': expected numbers, got string"),
        ("rows.parquet", ["--features", "y*"], "expected columns like 'y*', got 'id', 'bought',"),
        ("rows.csv", ["--categories", "x1"], "column 'x1': expected categories 0, 1, 2, ..., got"),
        ("texts.parquet", ["--categories", "id", "--features", "kind"], "column 'kind': expected numbers, got string"),
        ("word.csv", [], "word.csv: line 3: column 'x1': expected a number, got 'cheap'"),
        ("rows.csv", ["--format", "libsvm", "--weight", "w"], "--weight: expected a CSV, TSV or Parquet file"),
        ("rows.csv", ["--task", "ranking"], "--group: expected the column of queries with --task ranking"),
        ("rows.parquet", ["--task", "ranking", "--group", "w"], "column 'w': expected integers or strings, got double"),
    ],
)
def test_gbt_when_table_is_wrong_then_one_line_names_column(train, files, file, options, expected):
    task = [] if "--task" in options else ["--task", "regression"]
    code, _, stderr = train("gbt", "--input", files / file, "--label", "price", *task, *options)
    assert code
    assert_one_line(stderr)
    assert expected in stderr
