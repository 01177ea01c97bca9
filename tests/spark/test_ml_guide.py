"""The code in README.md and in the guides of docs/ runs as it stands."""

from __future__ import annotations

import contextlib
import gzip
import io
import re
from pathlib import Path

import numpy as np
import pytest

from ps2 import PS2Context

DOCS = Path(__file__).resolve().parents[2] / "docs"
# The quickstart is run in each build.
NIGHTLY = pytest.mark.nightly


@pytest.fixture
def fleets():
    """Fleets that the code starts are stopped after it."""
    yield
    active = PS2Context.getActive()
    if active is not None:
        active.stop()


@pytest.fixture
def run(spark, fleets):
    """``run(name)``: run the code of a guide; return its names."""

    def run_guide(name, text=None):
        space = {"__name__": "__main__"}
        with contextlib.redirect_stdout(io.StringIO()):
            for block in re.findall(r"```python\n(.*?)```", text or (DOCS / name).read_text(), re.DOTALL):
                exec(compile(block, name, "exec"), space)
        return space

    return run_guide


@NIGHTLY
def test_ml_guide_when_run_then_loaded_model_is_trained_one(run):
    space = run("ml.md")
    loaded = space["LogisticRegressionModel"].load(space["path"])
    np.testing.assert_array_equal(loaded.coefficients, space["model"].coefficients)


@NIGHTLY
def test_trees_guide_when_code_is_run_then_model_predicts(run):
    assert run("trees.md")["alone"].predict(np.array([[1.0, 2.0], [1.0, -2.0]])).tolist() == [1.0, 0.0]


@pytest.mark.filterwarnings("ignore:.*An input example was:UserWarning")  # MLflow's advice
@NIGHTLY
def test_mlflow_guide_when_code_is_run_then_predictions_match(run):
    space = run("mlflow.md")
    assert space["prediction"].tolist() == [1.0, 0.0]
    assert space["again"].uid == space["model"].uid


@NIGHTLY
def test_graphs_guide_when_code_is_run_then_server_walks_match(run):
    space = run("graphs.md")
    assert space["from_servers"] == space["from_workers"]


@NIGHTLY
def test_factors_guide_when_code_is_run_then_predictions_match(run):
    space = run("factors.md")
    factors, model = space["factors"], space["model"]
    np.testing.assert_array_equal(factors.predict(["ann"], [100]), model.predict(["ann"], [100]))
    assert "gus" in space["again"].factors.users


@NIGHTLY
def test_metric_guide_when_code_is_run_then_classes_separate(run):
    space = run("metric.md")
    metric, x = space["metric"], space["x"]  # classes take turns
    assert metric.distances(x[:-2], x[2:]).mean() < 0.7 * metric.distances(x[:-1], x[1:]).mean()
    np.testing.assert_array_equal(metric.components, space["model"].metric.components)


@NIGHTLY
def test_dictionary_guide_when_code_is_run_then_rows_are_sums(run):
    space = run("dictionary.md")
    x, codes = space["x"], space["codes"]
    rest = np.linalg.norm(x - codes @ space["coder"].dictionary)
    assert rest < 0.2 * np.linalg.norm(x)
    assert codes.nnz < 0.6 * codes.shape[0] * codes.shape[1]


@NIGHTLY
def test_topics_guide_when_run_then_model_separates_topics(run):
    space = run("topics.md")
    oak, cow = (space["counter"].vocabulary.index(word) for word in ("oak", "cow"))
    documents = np.zeros((2, len(space["counter"].vocabulary)))
    documents[0, oak] = documents[1, cow] = 5
    shares = space["alone"].transform(documents)
    assert sorted(shares.argmax(axis=1)) == [0, 1]


@NIGHTLY
def test_embeddings_guide_when_code_is_run_then_groups_separate(run):
    space = run("embeddings.md")
    assert {vertex // 8 for vertex, _ in space["alone"].similar(3, 5)} == {0}
    assert {word for word, _ in space["model"].findSynonymsArray("oak", 3)} == {"elm", "yew", "ash"}


@NIGHTLY
def test_key_guides_when_code_is_run_then_all_of_it_runs(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run("hashing.md")["rows"].indptr.tolist() == [0, 5, 8]
    assert run("keys.md")["m"].keyStatus().admitted == 2
    assert run("tables.md")["table"].keysCount() > 3
    assert run("serving.md")["scorer"].keysCount == 1002
    assert len(run("deep.md")["model"].summary.objectiveHistory) == 1


@NIGHTLY
def test_streams_guide_when_run_then_each_row_is_learned_once(run):
    space = run("streams.md")
    assert 0.5 < space["training"].lastProgress.total.auc <= 1
    assert space["training"].lastProgress.total.rows == space["today"].count()
    assert str(space["error"]).startswith("batch 3: column 'click'")
    above, below = space["scorer"].score([{"user": "u17", "ad": "ad1"}, {"user": "u17", "ad": "ad9"}])
    assert above > 0.9
    assert below < 0.1


@NIGHTLY
def test_operations_pages_when_code_is_run_then_all_of_it_runs(run):
    assert run("clusters.md")["model"].summary.clusterSizes == [100] * 3
    PS2Context.getActive().stop()
    space = run("recovery.md")
    assert (space["ps"].nextStep, space["weight"].sum()) == (10, 1014.0)
    space["ps"].stop()
    assert run("fleet.md")["ps"].conf.keep == 5


# Why no test runs the code of a page as it stands; the page says so, too.
NOT_RUN = {"deploy.md": "a cluster", "connect.md": "a Connect server"}
# Their blocks are parts of programs that other tests run whole.
EXCERPTS = {"logs.md", "metrics.md", "tracing.md"}
# Other tests run the code of these.
ELSEWHERE = {"run.md", "kernels.md", "security.md", "torch.md"}


def test_pages_when_they_have_code_then_it_runs_or_page_says_not():
    pages = {path.name: path.read_text() for path in DOCS.glob("*.md")}
    with_code = {name for name, text in pages.items() if "```python\n" in text}
    run_here = set(re.findall(r"run\(\"(\S+\.md)\"", Path(__file__).read_text()))
    assert with_code == run_here - {"README.md"} | NOT_RUN.keys() | ELSEWHERE | EXCERPTS
    for name, why in NOT_RUN.items():
        assert "no test runs" in pages[name], why


def test_quickstart_when_code_is_run_then_each_row_counts(run):
    assert run("quickstart.md")["counts_of_ids"].tolist() == [1429] * 4 + [1428] * 3


@NIGHTLY
def test_coming_from_page_when_run_then_others_models_agree(run):
    space = run("coming-from.md")
    np.testing.assert_allclose(space["there"].coefficients.toArray(), space["model"].coefficients)
    np.testing.assert_allclose(space["theirs"], space["ours"], atol=1e-6)
    assert space["weight"].pull().argmax() == 0


FILES = ("train.libsvm.gz", "test.libsvm.gz", "model", "clicks", "serving", "log", "job")
# What comes after it is of fleets elsewhere.
LAST = "\n## A fleet of its own"


@pytest.fixture
def readme(run_train, tmp_path):
    """The README up to what is of other fleets, with the files of its first command in a folder of their own."""
    rng = np.random.default_rng(0)
    for name, features in (("train", 6), ("test", 5)):
        x = rng.normal(size=(200, features))
        pairs = [" ".join(f"{at + 1}:{value:.3f}" for at, value in enumerate(row)) for row in x]
        lines = [f"{1 if row[0] > 0 else -1} {text}\n" for row, text in zip(x, pairs, strict=True)]
        (tmp_path / f"{name}.libsvm.gz").write_bytes(gzip.compress("".join(lines).encode()))
    code, _, stderr = run_train("lr", "--input", tmp_path / "train.libsvm.gz", "--output", tmp_path / "model")
    assert code == 0, stderr
    text = (DOCS.parent / "README.md").read_text().split(LAST)[0]
    for name in FILES:
        text = text.replace(f'"{name}"', repr(str(tmp_path / name)))
    return text


@NIGHTLY
def test_the_readme_when_its_code_is_run_then_all_of_it_runs(run, readme):
    space = run("README.md", readme)
    assert space["test"].count() > 0
    assert space["weight"].pull([0])[0] > 0
