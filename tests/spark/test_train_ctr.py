"""``ps2 train ctr`` on files: what it says, what it leaves behind, and what was wrong."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from ps2 import PS2Context
from ps2.algorithms import OnlineLogisticRegressionModel
from ps2.serving import Scorer
from tests.commands import assert_one_line

ROWS = 2000
COLUMNS = ["--categories", "site,ad", "--buckets", "price", "--crosses", "site:ad"]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Clicks that depend on site and ad, as CSV, as TSV without names, as Parquet, and malformed."""
    folder = tmp_path_factory.mktemp("clicks")
    rng = np.random.default_rng(0)
    site, ad = rng.integers(0, 5, ROWS), rng.integers(0, 5, ROWS)
    label = (rng.random(ROWS) < np.where(site == ad, 0.9, 0.1)).astype(int)
    table = pa.table(
        {
            "label": label,
            "site": [f"s,{number}" for number in site],
            "ad": [f"a{number}" for number in ad],
            "price": pa.array(rng.random(ROWS).round(3), mask=rng.random(ROWS) < 0.1),
        }
    )
    pacsv.write_csv(table, folder / "clicks.csv")
    unquoted = table.set_column(1, "site", pa.array([f"s{number}" for number in site]))
    tab = pacsv.WriteOptions(include_header=False, delimiter="\t", quoting_style="none")
    pacsv.write_csv(unquoted, folder / "clicks.tsv", tab)
    (folder / "days" / "day=0").mkdir(parents=True)
    pq.write_table(table, folder / "days" / "day=0" / "part.parquet")
    first = "label,site,ad,price\n1,s,a,1.5\n"
    (folder / "fields.csv").write_text(first + "0,s,a\n")
    (folder / "number.csv").write_text(first + "0,s,a,cheap\n")
    (folder / "label.csv").write_text(first + "2,s,a,1\n")
    return folder


@pytest.fixture
def train(run_train, tmp_path):
    """``train(*options)``: run the command; see ``run_train``."""

    def run(*options):
        return run_train("ctr", "--output", tmp_path / "model", *options)

    return run


def test_ctr_when_histories_are_texts_then_their_parts_count(train, tmp_path):
    """Values of a list in a text file are separated by spaces, and the export scores lists."""
    rows = [f"{n % 2},i{n % 4},i{(n + n % 2) % 4} i{(n + 2) % 4}" for n in range(400)]
    (tmp_path / "clicks.csv").write_text("\n".join(["label,item,clicked", *rows]))
    columns = ["--categories", "item", "--histories", "clicked:item", "--model", "din", "--hidden", "8"]
    export = tmp_path / "export"
    code, stdout, stderr = train("--input", tmp_path / "clicks.csv", *columns, "--export", export, "-o", "json")
    assert (code, stderr) == (0, "")
    assert (json.loads(stdout)["rows"], json.loads(stdout)["keys"]) == (400, 4)
    with Scorer(str(export)) as scorer:
        assert len(scorer.score([{"item": "i1", "clicked": ["i2", "i3"]}, {"item": "i1", "clicked": []}])) == 2


def test_ctr_when_csv_then_model_and_export_score_alike(train, files, tmp_path, spark, server, token_file):
    positions = ["--test", files / "clicks.csv", "--export", tmp_path / "export", "-o", "json"]
    code, stdout, stderr = train("--input", files / "clicks.csv", *COLUMNS, *positions)
    assert (code, stderr) == (0, "")
    messages = json.loads(stdout)
    assert messages["rows"] == messages["test"]["rows"] == ROWS
    assert messages["test"]["auc"] > 0.8
    scorer = Scorer(str(tmp_path / "export"))
    rows = [{"site": "s,1", "ad": "a1", "price": 0.5}, {"site": "s,1", "ad": "a2", "price": None}]
    scores = scorer.score(rows)
    assert scores[0] > scores[1] + 0.2
    with PS2Context.getOrCreate(spark, fleet=server, tokenFile=token_file):
        loaded = OnlineLogisticRegressionModel.load(str(tmp_path / "model"))
        result = loaded.transform(spark.createDataFrame(rows, "site string, ad string, price double")).collect()
    assert [row.probability[1] for row in result] == pytest.approx(list(scores), abs=1e-6)


@pytest.mark.parametrize(
    "options",
    [
        ["--input", "clicks.tsv", "--columns", "label,site,ad,price"],
        ["--input", "days", "--model", "fm", "--rank", 2, "--epochs", 2],
    ],
)
def test_ctr_when_tsv_or_parquet_then_learns(train, files, options):
    options[1] = files / options[1]
    code, stdout, stderr = train(*options, *COLUMNS, "-o", "json")
    assert (code, stderr) == (0, "")
    assert json.loads(stdout)["passes"][-1]["auc"] > 0.7


@pytest.mark.nightly
def test_ctr_when_deep_is_restored_then_it_goes_on(train, files, tmp_path):
    """Wide & Deep: its crosses are wide. The first command leaves checkpoints of its steps."""
    folder, plots = tmp_path / "checkpoints", tmp_path / "plots"
    options = ["--input", files / "days", *COLUMNS, "--model", "wide-deep", "--hidden", "8,4", "--batch-size", 50]
    options += ["--workers", 1, "--overwrite", "-o", "json"]
    often = ["--checkpoint-dir", folder, "--checkpoint-every", 0.05]
    code, stdout, stderr = train(*options, "--rank", 4, "--epochs", 3, *often, "--plots", plots)
    assert (code, stderr) == (0, "")
    first = json.loads(stdout)
    assert (len(first["steps"]), first["plots"]) == (3, [str(plots / "loss.png")])
    assert (plots / "loss.png").stat().st_size
    code, _, stderr = train(*options, "--rank", 5, "--restore", folder)
    assert (code, "k was 4, and is 5" in stderr) == (2, True), stderr
    code, stdout, stderr = train(*options, "--rank", 4, "--epochs", 5, "--restore", folder)
    assert (code, stderr) == (0, "")
    assert len(json.loads(stdout)["steps"]) == 5  # those of the first command, too


@pytest.mark.parametrize(
    ("file", "options", "expected"),
    [
        ("fields.csv", (), "fields.csv: line 3: expected 4 fields, as the first line has, got 3"),
        ("number.csv", (), "number.csv: line 3: column 'price': expected a number, got 'cheap'"),
        ("label.csv", (), "label.csv: line 3: column 'label': expected a label 0 or 1, got '2'"),
        ("clicks.csv", ("--label", "click"), "expected a column 'click', got 'label', 'site', 'ad', 'price'"),
    ],
)
def test_ctr_when_input_is_wrong_then_one_line_says_so(train, files, file, options, expected):
    code, _, stderr = train("--input", files / file, *COLUMNS, *options)
    assert code
    assert_one_line(stderr)
    assert expected in stderr


def test_ctr_when_rows_are_held_out_then_each_pass_is_measured(train, files):
    options = ["--input", files / "clicks.csv", *COLUMNS, "--model", "fm", "--epochs", 3, "--patience", 1]
    code, stdout, stderr = train(*options, "--held-out", 0.2, "-o", "json")
    assert (code, stderr) == (0, "")
    losses = [step["held_out_loss"] for step in json.loads(stdout)["passes"]]
    assert all(0 < loss < 1 for loss in losses)
    assert losses[:-2] == sorted(losses[:-2], reverse=True)


def test_ctr_when_it_begins_with_a_model_then_new_keys_appear(train, files, tmp_path):
    """The first command's rows lack one site."""
    days = ["--model", "deepfm", "--hidden", "4", "--epochs", 1, "--workers", 1, "-o", "json"]
    table = pq.read_table(files / "days" / "day=0" / "part.parquet")
    pq.write_table(table.filter(pc.not_equal(table["site"], "s,4")), tmp_path / "first.parquet")
    code, stdout, stderr = train("--input", tmp_path / "first.parquet", *COLUMNS, *days, "--rank", 3)
    assert (code, stderr) == (0, "")
    first = json.loads(stdout)
    options = ["--input", files / "days", *COLUMNS, *days, "--initial-model", tmp_path / "model", "--overwrite"]
    code, _, stderr = train(*options, "--rank", 4)
    assert (code, "model: k: expected 3, as the model has, got 4" in stderr) == (2, True), stderr
    code, stdout, stderr = train(*options, "--rank", 3)
    assert (code, stderr) == (0, "")
    second = json.loads(stdout)
    assert second["keys"] > first["keys"]
    assert second["steps"][0]["loss"] < first["steps"][0]["loss"]


def test_ctr_when_rows_have_times_then_hours_are_keys(train, tmp_path):
    """Clicks come in the morning; ages have bounds, and a time is missing."""
    rng = np.random.default_rng(0)
    hours, ages = rng.integers(0, 24, ROWS), rng.integers(10, 80, ROWS)
    lines = [
        f"{int(h < 12)},2026-03-0{h % 9 + 1} {h:02}:15:00,2026-03-01,{a}" for h, a in zip(hours, ages, strict=True)
    ]
    (tmp_path / "times.csv").write_text("\n".join(["label,at,born,age", *lines, "0,,2026-03-01,30", ""]))
    columns = ["--categories", "hour(at)", "--buckets", "age,datediff(at,born)", "--bounds", "age=18,65"]
    options = ["--input", tmp_path / "times.csv", *columns, "--export", tmp_path / "export", "-o", "json"]
    code, stdout, stderr = train(*options)
    assert (code, stderr) == (0, "")
    assert json.loads(stdout)["keys"] == 24 + 3 + 4 + 1  # and the intercept; days 0 to 8 are in 4 intervals
    row = {"at": "2026-03-05 09:00", "born": "2026-03-01", "age": 20}
    scores = Scorer(str(tmp_path / "export")).score([row, {**row, "at": "2026-03-05 21:00"}])
    assert scores[0] > scores[1] + 0.3
    (tmp_path / "times.csv").write_text("label,at,born,age\n1,noon,2026-03-01,20\n")
    code, _, stderr = train(*options, "--overwrite")
    assert (code, "column 'at': expected a date or a time, such as" in stderr) == (1, True)
