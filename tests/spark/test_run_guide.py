"""The code in docs/run.md runs as it stands, and Figure 3 comes to the same weights both ways."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import numpy as np
import pytest
from pyspark.ml.linalg import Vectors

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "run.md"
DIM = 40
ROWS = 200
PROGRAMS = (
    "A first run",
    "Rows as arrays: `ps2.data.rows`",
    "Rows that do not fit memory",
    "Messages and reports",
    "Overlap",
    "Model rotation",
    "Several runs at once",
)


def blocks(*titles):
    """The Python code in sections of the guide."""
    sections = GUIDE.read_text().split("\n## ")
    chosen = [section for section in sections if section.splitlines()[0] in titles]
    assert len(chosen) == len(titles)
    return [code for section in chosen for code in re.findall(r"```python\n(.*?)```", section, re.DOTALL)]


def run(code, **names):
    """Run code as a program's own: its functions go to tasks by value."""
    space = {"__name__": "__main__", "dim": DIM, **names}
    for block in code:
        exec(compile(block, str(GUIDE), "exec"), space)
    return space


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(3)
    x = rng.normal(size=(ROWS, DIM)) * (rng.random((ROWS, DIM)) < 0.3)
    y = x @ np.linspace(-1, 1, DIM) > 0
    return [(float(y[i]), Vectors.sparse(DIM, np.flatnonzero(x[i]), x[i][x[i] != 0])) for i in range(ROWS)]


@pytest.fixture(scope="module")
def figure_3(ps, sc, rows):
    """The weights of both forms, and what the model is before the first step."""
    common, staged, staying = blocks("Figure 3, both ways")
    data = sc.parallelize(rows, 2).cache()
    return [run([common, form], ps=ps, data=data)["weight"].pull() for form in (staged, staying)]


def test_figure_3_when_workers_stay_then_matches_stage_per_step(figure_3):
    np.testing.assert_allclose(figure_3[1], figure_3[0], rtol=1e-9, atol=1e-12)


def test_figure_3_when_workers_stay_then_it_learns(figure_3, rows):
    right = [(vector.toArray() @ figure_3[1] > 0) == (label > 0) for label, vector in rows]
    assert np.mean(right) > 0.9


@pytest.fixture(scope="module")
def first(ps, spark, rows):
    """What the guide's other programs leave in their variables, and ``printed``."""
    df = spark.createDataFrame(rows, ["label", "features"])
    with contextlib.redirect_stdout(io.StringIO()) as output:
        variables = run(blocks(*PROGRAMS), ps=ps, df=df)
    return {**variables, "printed": output.getvalue()}


def test_first_run_when_run_then_each_worker_returns_its_rows(first):
    assert sum(first["result"]) == ROWS


def test_first_run_when_run_then_the_loss_goes_down(first):
    losses = {int(clock): float(loss) for clock, loss in re.findall(r"^0 (\d+) loss (\S+)$", first["printed"], re.M)}
    assert losses[0] == pytest.approx(np.log(2))
    assert losses[25] < losses[0] / 2


def test_rows_when_read_then_shapes_are_those_of_the_data(first):
    assert sum(whole[0] for whole, _, _ in first["shapes"]) == ROWS
    assert {whole[1] for whole, _, _ in first["shapes"]} == {DIM}


def test_messages_when_loss_settles_then_run_ends(first):
    losses = np.array(first["losses"])
    stands = losses[1:] > 0.999 * losses[:-1]
    assert stands.tolist() == [False] * (len(losses) - 2) + [True]
    assert 2 <= len(losses) < 1000


def test_overlap_when_run_then_model_separates_classes(first, rows):
    w = first["weight"].pull()
    right = [(vector.toArray() @ w > 0) == (label > 0) for label, vector in rows]
    assert np.mean(right) > 0.9


def test_rotation_when_run_then_factors_approach_matrix(first):
    errors = np.nanmean(first["rotated"].metrics("error"), axis=0).reshape(20, -1).mean(axis=1)
    assert errors[-1] < 0.6 * errors[0]


def test_rotation_when_run_then_workers_get_every_block(first):
    for table in first["rotated"].timeline:
        assert (np.sort(table.block.reshape(20, 4)) == np.arange(4)).all()


def test_several_runs_when_in_threads_then_as_the_guide_says(first):
    (expected,) = re.findall(r"```text\n(\[\[.*)\n```", GUIDE.read_text())
    assert expected in first["printed"].splitlines()


def test_guide_when_read_then_all_its_code_is_run_here():
    code = len(re.findall("```python", GUIDE.read_text()))
    assert code == len(blocks(*PROGRAMS, "Figure 3, both ways"))
