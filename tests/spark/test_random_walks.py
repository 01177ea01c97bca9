"""RandomWalks: from edges to walks, on DataFrames."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from pyspark.errors import PythonException

from ps2.algorithms import RandomWalks
from ps2.errors import ConfigError, InputError
from tests.graphs import PAIRS, random_edges

# Tasks reach it, so all of them run in the same Python workers.
pytestmark = pytest.mark.usefixtures("ps")


def walks_of(frame):
    return [(row["epoch"], row["walk"]) for row in frame.collect()]


@pytest.fixture(scope="module")
def edges(spark):
    """Weighted edges between ids that are far apart."""
    graph = random_edges(60, 150, weighted=True)
    half = slice(0, 150)
    rows = zip(
        (graph.sources[half] * 7 - 100).tolist(),
        (graph.targets[half] * 7 - 100).tolist(),
        graph.weights[half].tolist(),
        strict=True,
    )
    return spark.createDataFrame(list(rows), "src long, dst long, weight double").repartition(3).persist()


def test_walks_when_graph_is_on_workers_or_servers_then_the_same(edges):
    inputs = {"numWalks": 2, "walkLength": 8, "seed": 3, "p": 0.25, "q": 4.0, "weightCol": "weight", "directed": True}
    expected = walks_of(RandomWalks(**inputs, graphOn="workers", numWorkers=1).transform(edges))
    assert len(expected) == 2 * edges.select("src").union(edges.select("dst")).distinct().count()
    walks = RandomWalks(**inputs, graphOn="servers", numWorkers=2)
    assert walks_of(walks.transform(edges.repartition(2))) == expected
    walks.free()
    assert walks_of(RandomWalks(**inputs, graphOn="auto", numWorkers=4).transform(edges.repartition(4))) == expected


def test_walks_when_ids_are_strings_then_their_steps_are_edges(spark):
    names = ["é", "b", "Z", "aa", "", "z", "10", "9", "ç"]
    frame = spark.createDataFrame([(names[a], names[b]) for a, b in PAIRS], "a string, b string")
    walks = RandomWalks(srcCol="a", dstCol="b", numWalks=2, walkLength=6)
    result = walks.transform(frame)
    assert result.dtypes == [("epoch", "int"), ("walk", "array<string>")]
    order = sorted(names[:8], key=lambda name: name.encode())
    assert [walk[0] for _, walk in walks_of(result)] == order * 2
    pairs = {(names[a], names[b]) for a, b in PAIRS} | {(names[b], names[a]) for a, b in PAIRS}
    assert all(step in pairs for _, walk in walks_of(result) for step in pairwise(walk))
    walks.setGraphOn("servers")
    assert walks_of(walks.transform(frame)) == walks_of(result)
    walks.free()


def test_walks_when_id_widths_differ_then_wider_is_used(spark):
    frame = spark.createDataFrame([(1, 2)], "src smallint, dst int")
    assert RandomWalks().transform(frame).dtypes[-1] == ("walk", "array<int>")


def test_walks_when_edge_weight_is_zero_then_edge_is_absent(spark):
    frame = spark.createDataFrame([(1, 2, 0.0), (3, 3, 1.0)], "src int, dst int, w float")
    for position in ("workers", "servers"):
        walks = RandomWalks(weightCol="w", numWalks=1, walkLength=3, graphOn=position)
        assert walks_of(walks.transform(frame)) == [(0, [1]), (0, [2]), (0, [3, 3, 3])]
        walks.free()


def test_walks_when_workers_outnumber_walks_then_none_are_idle(spark):
    edges = spark.createDataFrame([(1, 2)], "src long, dst long")
    walks = RandomWalks(numWalks=1, walkLength=3, numWorkers=2**31 - 1).transform(edges)
    assert [row["walk"] for row in walks.collect()] == [[1, 2, 1], [2, 1, 2]]


def test_walks_when_there_is_one_vertex_then_they_are_of_it(spark):
    frame = spark.createDataFrame([(5, 5)], "src long, dst long")
    for position in ("workers", "servers"):
        walks = RandomWalks(numWalks=2, walkLength=2, graphOn=position)
        assert walks_of(walks.transform(frame)) == [(0, [5, 5]), (1, [5, 5])]
        walks.free()


def test_walks_when_graph_was_released_then_cannot_be_computed(edges):
    walks = RandomWalks(numWalks=1, walkLength=2, graphOn="servers")
    result = walks.transform(edges)
    walks.free()
    with pytest.raises(PythonException, match=r"NotFoundError.*does not exist"):
        walks_of(result)


@pytest.mark.parametrize(
    ("rows", "schema", "message"),
    [
        ([], "src int, dst int", "an empty DataFrame"),
        ([(1, None), (1, 2)], "src int, dst int", "column 'dst': expected ids, got null in 1 of 2 rows"),
        ([(None, "a")], "src string, dst string", "column 'src': expected ids, got null"),
        ([(1, 2, None)], "src int, dst int, w double", "got null in 1 of 1 rows"),
        ([(1, 2, math.nan)], "src int, dst int, w double", "got NaN in 1"),
        ([(1, 2, math.inf)], "src int, dst int, w double", "got infinity in 1"),
        ([(1, 2, -0.5)], "src int, dst int, w float", "got negative weights in 1"),
        ([(1, 2, 1.7e308), (1, 2, 1.7e308)], "src int, dst int, w double", "the sum of its weights exceeds"),
        ([(1, 2, 1e308)], "src int, dst int, w double", "the sum of its weights exceeds"),
        ([(1, 2, "x")], "src int, dst int, w string", "expected numbers as weights, got string"),
        ([(1, "a")], "src int, dst string", "integers in both or strings in both, got int and string"),
        ([(1.0, 2.0)], "src double, dst double", "got double and double"),
        ([(1, 2)], "src int, b int", "there is no column 'dst'"),
    ],
)  # fmt: skip
def test_edges_when_they_are_wrong_then_the_error_says_what(spark, rows, schema, message):
    weight = {"weightCol": "w"} if "w " in schema else {}
    with pytest.raises(InputError, match=message.replace("(", r"\(")):
        RandomWalks(**weight).transform(spark.createDataFrame(rows, schema))


@pytest.mark.parametrize(
    ("name", "value"),
    [("p", 0.0), ("q", 0.0), ("p", -1.0), ("q", math.inf), ("p", math.nan), ("walkLength", 0), ("numWalks", 0),
     ("numWorkers", 0), ("graphOn", "moon")],
)  # fmt: skip
def test_params_when_invalid_then_error_before_any_job(spark, name, value):
    frame = spark.createDataFrame([(1, 2)], "src int, dst int")
    with pytest.raises(ConfigError, match=f"{name}: expected"):
        RandomWalks(**{name: value}).transform(frame)


def test_transformer_when_saved_and_loaded_then_has_its_params(spark, tmp_path):
    walks = RandomWalks(numWalks=3, walkLength=5, p=0.5, directed=True, seed=8)
    walks.save(str(tmp_path / "walks"))
    loaded = RandomWalks.load(str(tmp_path / "walks"))
    assert {p.name: v for p, v in loaded.extractParamMap().items()} == {
        p.name: v for p, v in walks.extractParamMap().items()
    }
