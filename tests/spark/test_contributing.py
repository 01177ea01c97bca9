"""What docs/contributing shows runs as it stands there, and gives what others give."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pyspark.ml.classification import NaiveBayes
from pyspark.ml.linalg import Vectors

from ps2 import PS2Context
from ps2.algorithms import LogisticRegression

REPO = Path(__file__).parents[2]
PAGES = REPO / "docs" / "contributing"
FAMILY, OPTIMIZER, LAUNCHER = "tests.kernels.naive_bayes", "tests.kernels.signs", "tests.launchers.plain"
ROWS, FEATURES, CLASSES = 120, 7, 3


@pytest.fixture(scope="module")
def counts(spark):
    chance = np.random.default_rng(5)
    shares = chance.dirichlet(np.ones(FEATURES), CLASSES)
    rows = [(label := int(chance.integers(CLASSES)), chance.multinomial(30, shares[label])) for _ in range(ROWS)]
    frame = spark.createDataFrame([(float(y), Vectors.dense(x.astype(float))) for y, x in rows], ["label", "features"])
    return frame.repartition(2).cache()


@pytest.fixture(scope="module")
def ps(spark):
    with PS2Context.getOrCreate(spark, servers=2, ops=[f"{FAMILY}.ops", OPTIMIZER]) as made:
        yield made


def test_family_when_trained_then_its_model_is_pysparks(ps, counts):
    from tests.kernels.naive_bayes import trainer

    theirs = NaiveBayes(smoothing=1.0, modelType="multinomial").fit(counts)
    np.testing.assert_allclose(trainer.train(ps, counts, FEATURES, CLASSES), theirs.theta.toArray(), rtol=1e-12)


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
    [("family", f"{FAMILY}.ops"), ("family", f"{FAMILY}.trainer"), ("optimizer", OPTIMIZER), ("launcher", LAUNCHER)],
)
def test_page_when_it_shows_a_module_then_it_is_what_runs(page, module):
    assert (REPO / (module.replace(".", "/") + ".py")).read_text() in (PAGES / f"{page}.md").read_text()


@pytest.mark.parametrize("page", ["operation", "optimizer", "family", "launcher", "command"])
def test_page_when_it_names_files_then_they_are_three_and_there(page):
    rows = [line.split("`")[1] for line in (PAGES / f"{page}.md").read_text().splitlines() if line.startswith("| `")]
    named = [name for name in rows if "/" in name]
    assert 0 < len(named) <= 3
    assert [name for name in named if not (REPO / name).exists() and "NAME" not in name] == []
