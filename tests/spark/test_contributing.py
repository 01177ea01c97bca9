"""What docs/contributing shows runs as it stands there, and gives what others give."""

from __future__ import annotations

import ast
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from pyspark.ml.classification import NaiveBayes as PysparkNaiveBayes
from pyspark.ml.linalg import Vectors

from ps2 import PS2Context
from ps2.algorithms import LogisticRegression
from ps2.cli.main import train
from ps2.ops.modules import load_modules

REPO = Path(__file__).parents[2]
PAGES = REPO / "docs" / "contributing"
FAMILY, OPTIMIZER, LAUNCHER = "tests.kernels.naive_bayes", "tests.kernels.signs", "tests.launchers.plain"
ROWS, FEATURES, CLASSES = 120, 7, 3
# The limit of the code of a family with an estimator, a model, a command and an operation.
MAX_FAMILY_LINES = 120


@pytest.fixture(scope="module")
def counts(spark):
    chance = np.random.default_rng(5)
    shares = chance.dirichlet(np.ones(FEATURES), CLASSES)
    rows = [(label := int(chance.integers(CLASSES)), chance.multinomial(30, shares[label])) for _ in range(ROWS)]
    frame = spark.createDataFrame([(float(y), Vectors.dense(x.astype(float))) for y, x in rows], ["label", "features"])
    return frame.repartition(2).cache()


@pytest.fixture
def ps(spark):
    with PS2Context.getOrCreate(spark, servers=2, ops=[f"{FAMILY}.ops", OPTIMIZER]) as created:
        yield created


def test_family_when_trained_then_its_model_is_pysparks(ps, counts, tmp_path):
    from tests.kernels.naive_bayes.estimator import NaiveBayes, NaiveBayesModel

    theirs = PysparkNaiveBayes(smoothing=0.5, modelType="multinomial").fit(counts)
    model = NaiveBayes(smoothing=0.5).fit(counts)
    model.save(str(tmp_path / "model"))
    for ours in (model, NaiveBayesModel.load(str(tmp_path / "model"))):
        np.testing.assert_allclose(ours.fitted.features, theirs.theta.toArray(), rtol=1e-12)
        np.testing.assert_allclose(ours.fitted.priors, theirs.pi.toArray(), rtol=1e-12)
        columns = "prediction", "probability"
        rows, expected_rows = (one.transform(counts).select(*columns).collect() for one in (ours, theirs))
        for got, expected in zip(rows, expected_rows, strict=True):
            assert got.prediction == expected.prediction
            np.testing.assert_allclose(got.probability, expected.probability, rtol=1e-9)


def test_family_when_its_command_runs_then_model_is_saved(run_train, serving, token_file, counts, tmp_path):
    from tests.kernels.naive_bayes.command import NaiveBayesCommand
    from tests.kernels.naive_bayes.program import ClassProbabilities

    lines = [
        f"{row.label:g} " + " ".join(f"{index + 1}:{count:g}" for index, count in enumerate(row.features))
        for row in counts.collect()
    ]
    (tmp_path / "rows").write_text("\n".join(lines) + "\n")
    load_modules([f"{FAMILY}.ops"])  # as PS2Conf.ops does, which the command has no option for
    options = ["--input", tmp_path / "rows", "--smoothing", 2, "--output", tmp_path / "model"]
    with (
        serving(token_file, "--ops", f"{FAMILY}.ops") as server,
        mock.patch.dict(train.commands, {"naive-bayes": NaiveBayesCommand.command()}),
    ):
        code, stdout, stderr = run_train("naive-bayes", *options, fleet=server)
    assert (code, stderr) == (0, "")
    assert stdout.startswith(f"{ROWS} rows in {CLASSES} classes\n")
    assert ClassProbabilities.load(str(tmp_path / "model")).features.shape == (CLASSES, FEATURES)


def test_family_when_counted_then_it_is_short():
    sources = [path.read_text() for path in (REPO / FAMILY.replace(".", "/")).glob("*.py")]
    docs = sum((ast.get_docstring(node, clean=False) or "").count("\n") + 1 for node in _documented(sources))
    lines = sum(bool(line.strip()) for source in sources for line in source.splitlines())
    assert lines - docs <= MAX_FAMILY_LINES


def _documented(sources):
    kinds = ast.Module, ast.ClassDef, ast.FunctionDef
    nodes = (node for source in sources for node in ast.walk(ast.parse(source)))
    return [node for node in nodes if isinstance(node, kinds) and ast.get_docstring(node)]


def test_optimizer_when_module_declares_it_then_is_accepted(ps, counts):
    rows = counts.filter("label < 2")
    model = LogisticRegression(optimizer="signs", stepSize=0.02, maxIter=60, standardization=False).fit(rows)
    losses = model.summary.objectiveHistory
    assert losses[-1] < 0.5 * losses[0]


def test_optimizer_when_it_does_not_declare_lazy_then_refused(ps, counts):
    from ps2.errors import ConfigError

    with pytest.raises(ConfigError, match="lazy: optimizer 'signs' does not take it"):
        LogisticRegression(optimizer="signs", lazy=True).fit(counts.filter("label < 2"))


@pytest.mark.parametrize(
    ("page", "module"),
    [
        *(("family", f"{FAMILY}.{name}") for name in ("settings", "ops", "program", "estimator", "command")),
        ("optimizer", OPTIMIZER),
        ("launcher", LAUNCHER),
    ],
)
def test_page_when_it_shows_a_module_then_it_is_what_runs(page, module):
    assert (REPO / (module.replace(".", "/") + ".py")).read_text() in (PAGES / f"{page}.md").read_text()


@pytest.mark.parametrize("page", ["operation", "optimizer", "family", "launcher", "command"])
def test_page_when_it_names_files_then_they_are_three_and_there(page):
    rows = [line.split("`")[1] for line in (PAGES / f"{page}.md").read_text().splitlines() if line.startswith("| `")]
    named = [name for name in rows if "/" in name]
    assert 0 < len(named) <= 3
    assert [name for name in named if not (REPO / name).exists() and "NAME" not in name] == []
