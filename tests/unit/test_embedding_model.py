"""Vectors without Spark: who is similar, files, exports, pictures, and what is wrong with names."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pyarrow as pa
import pytest

from ps2.algorithms.embeddings.model import MODELS, Embedding
from ps2.algorithms.embeddings.plotting import MAX_POINTS
from ps2.errors import (
    CheckpointCorruptError,
    CheckpointMissingError,
    ConfigError,
    InputError,
    ShapeError,
    UsageError,
)

WORDS = ["oak", "elm", "été", "yew", "nowhere"]
VECTORS = np.array([[1, 0, 0], [2, 0.2, 0], [0, 0, 3], [0.5, 0.5, 0], [0, 0, 0]], np.float32)

CONTEXTS = np.array([[0, 1, 0], [0.5, 0, 1], [-1, -1, 0]], np.float32)


@pytest.fixture
def words():
    return Embedding(WORDS, VECTORS, [9, 7, 5, 3, 1])


@pytest.fixture
def vertices():
    return Embedding(np.array([2**40, -7, 3]), VECTORS[:3], kind="line", contexts=CONTEXTS)


@pytest.mark.parametrize("scale", [1e-40, 1e-30, 1.0, 1e30, 2e38])
def test_similar_when_squares_leave_float32_then_cosines(scale):
    result = Embedding(["a", "b", "c"], np.float32(scale) * np.array([[1, 1], [0.5, 0.5], [1, -1]], np.float32))
    assert [name for name, _ in result.similar("a")] == ["b", "c"]
    np.testing.assert_allclose([cosine for _, cosine in result.similar("a")], [1, 0], atol=1e-4)
    assert result.similar(np.array([3.0, -3.0]) * scale * 1e200, 1) == [("c", pytest.approx(1, abs=1e-4))]


def test_similar_when_vector_is_not_finite_then_refused(words):
    with pytest.raises(InputError, match="vector: expected finite numbers"):
        words.similar([np.nan, 1.0, 0.0])


def test_names_when_used_as_a_sequence_then_are_what_was_given(words, vertices):
    names = words.names
    assert (list(names), names[0], names[-1], names[1:3]) == (WORDS, "oak", "nowhere", ["elm", "été"])
    assert ("yew" in names, "ash" in names, names.index("yew"), [*reversed(names)]) == (True, False, 3, WORDS[::-1])
    assert (words.names.count("yew"), words.names.count(7)) == (1, 0)
    assert np.asarray(vertices.names).tolist() == [2**40, -7, 3]
    assert np.array(vertices.names).flags.writeable
    assert np.asarray(vertices.names).dtype == np.int64
    with pytest.raises(IndexError, match="expected a position below 5, got 5"):
        names[5]
    with pytest.raises(ValueError, match="'ash' is not among"):
        names.index("ash")


def cosine(one, other):
    return one @ other / np.linalg.norm(one) / np.linalg.norm(other)


def test_similar_when_given_name_then_sorted_by_cosine(words):
    result = words.similar("oak", 3)
    assert [name for name, _ in result] == ["elm", "yew", "été"]
    np.testing.assert_allclose(
        [value for _, value in result], [cosine(VECTORS[0], VECTORS[at]) for at in (1, 3, 2)], rtol=1e-6
    )


def test_similar_when_of_a_vector_then_all_names_may_come(words):
    assert [name for name, _ in words.similar([0, 0, 1], 1)] == ["été"]
    assert len(words.similar([0, 0, 0], 50)) == 5


def test_similar_when_more_are_asked_than_exist_then_all_come(words, vertices):
    assert len(words.similar("nowhere", 50)) == 4
    assert [name for name, _ in vertices.similar(2**40)] == [-7, 3]


@pytest.mark.parametrize("name", ["ash", 3, None, ""])
def test_similar_when_name_is_unknown_then_error_says_so(words, name):
    with pytest.raises((InputError, ShapeError), match="expected"):
        words.similar(name)


def test_similar_when_count_or_size_is_invalid_then_refused(words):
    for n in (0, 1.5, True, "2"):
        with pytest.raises(ConfigError, match=f"n: expected an integer, at least 1, got {n!r}"):
            words.similar("oak", n)
    with pytest.raises(ShapeError, match=r"vector: expected shape \(3,\), got \(2,\)"):
        words.similar([1.0, 2.0])


def test_score_when_given_pairs_then_uses_contexts_and_counts():
    counts = np.array([20, 5, 0])
    embedding = Embedding([2**40, -7, 3], VECTORS[:3], counts, "line", CONTEXTS, exponent=0.5)
    there = VECTORS[1] @ CONTEXTS[0] + np.log(5) + 0.5 * np.log(20)
    back = VECTORS[0] @ CONTEXTS[1] + np.log(20) + 0.5 * np.log(5)
    np.testing.assert_allclose(embedding.score([-7], [2**40], directed=True), [there], rtol=1e-6)
    np.testing.assert_allclose(embedding.score([-7, 2**40], [2**40, -7]), [(there + back) / 2] * 2, rtol=1e-6)
    alone = Embedding(WORDS, VECTORS)
    np.testing.assert_allclose(alone.score(["oak", "oak"], ["nowhere", "elm"]), [0, VECTORS[0] @ VECTORS[1]])


def test_score_when_edges_are_directed_then_counts_are_directed(tmp_path):
    created = Embedding([1, 2], VECTORS[:2], [4, 9], "line", VECTORS[1:3], exponent=0.5, sources=[5, 0])
    created.save(str(tmp_path / "line"))
    for embedding in (created, Embedding.load(str(tmp_path / "line"))):
        there = VECTORS[0] @ VECTORS[2] + np.log(5) + 0.5 * np.log(9)
        np.testing.assert_allclose(embedding.score([1], [2], directed=True), [there], rtol=1e-6)
    with pytest.raises(ShapeError, match=r"sources: expected a count for each of 2 names, got shape \(1,\)"):
        Embedding([1, 2], VECTORS[:2], sources=[1])


def test_score_when_names_are_one_text_then_error(words):
    """Its letters would be names without vectors."""
    with pytest.raises(InputError, match="word: expected a list of names, got 'oak'"):
        words.score("oak", "elm")


def test_score_when_names_are_unknown_then_error_lists_some(vertices):
    with pytest.raises(InputError, match=r"vertex: expected some of the 3 that have a vector, got 4 others: 8, 9, 10"):
        vertices.score([8, 9, 10, 11], [3, 3, 3, 3])


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (["a", "b"], "vertex: expected integers, the type of the vectors' names, got string"),
        ([2.0**40, 3.0], "got double"),
        (np.array([2.0**40, np.nan]), "got double"),
        ([True, False], "got bool"),
        ([2**63, 3], r"expected all integers below 2\*\*63"),
        (np.array([2**63, 3], np.uint64), r"expected integers below 2\*\*63"),
        ([2**60, 1.5], r"expected all integers below 2\*\*63"),
    ],
)
def test_ids_when_they_are_no_int64_then_they_are_refused(vertices, ids, message):
    with pytest.raises(InputError, match=message):
        vertices.score(ids, [3, 3])


def test_ids_when_beside_a_null_then_they_stay_what_they_are():
    names = Embedding([2**60 + 1, 2**60, -(2**63), 2**63 - 1], np.eye(4), kind="line").names
    positions = names.positions([2**63 - 1, None, -(2**63), 2**60, 2**60 + 1])
    assert positions.tolist() == [3, -1, 2, 1, 0]
    assert names.positions([]).tolist() == names.positions([None]).tolist()[1:]


def test_means_when_words_are_unknown_then_they_count_as_zeros(words):
    result = words.transform([["oak", "ash", "elm", "elm"], [], ["ash"]])
    np.testing.assert_allclose(result, [(VECTORS[0] + 2 * VECTORS[1]) / 4, [0, 0, 0], [0, 0, 0]])
    some = pa.array([["x"], ["oak"], ["elm", "yew"]])[1:]
    np.testing.assert_allclose(words.means(some), [VECTORS[0], (VECTORS[1] + VECTORS[3]) / 2])


def test_a_name_when_it_is_looked_up_then_its_vector_comes(words, vertices):
    np.testing.assert_array_equal(words["yew"], VECTORS[3])
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(vertices))[-7], VECTORS[1])
    assert ("oak" in words, "ash" in words, len(words), words.dim) == (True, False, 5, 3)
    assert repr(vertices) == "Embedding('line', n=3, dim=3)"


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["a", "a", "b", "c", "d"], "distinct"),
        (["a", None, "b", "c", "d"], "without null"),
        ([1, "a", 2, 3, 4], "all integers below .*, or all strings"),
        ([1.5, 2.5, 3.5, 4.5, 5.5], "got double"),
        ([2**60, 2**60 + 1, 2.0, 3.0, 4.0], r"integers below 2\*\*63"),
        ([2**63, 2, 3, 4, 5], r"integers below 2\*\*63"),
        (np.array([2**63, 2, 3, 4, 5], np.uint64), r"integers below 2\*\*63"),
        ([True, False], "got bool"),
    ],
)
def test_names_when_they_cannot_be_then_the_error_says_why(names, message):
    with pytest.raises(InputError, match=message):
        Embedding(names, VECTORS)


def test_embedding_when_parts_do_not_match_then_refused():
    with pytest.raises(ShapeError, match="for each of 2 names"):
        Embedding(["a", "b"], VECTORS)
    with pytest.raises(ShapeError, match=r"contexts: expected shape \(5, 3\), got \(3, 3\)"):
        Embedding(WORDS, VECTORS, contexts=CONTEXTS)
    with pytest.raises(ConfigError, match="kind: expected one of word2vec, deepwalk, node2vec, line, got 'glove'"):
        Embedding(WORDS, VECTORS, kind="glove")


@pytest.mark.parametrize("name", ["words", "vertices"])
def test_files_when_saved_and_loaded_then_all_is_the_same(name, request, tmp_path):
    embedding, path = request.getfixturevalue(name), str(tmp_path / "model")
    embedding.save(path)
    result = Embedding.load(path)
    np.testing.assert_array_equal(result.vectors, embedding.vectors)
    np.testing.assert_array_equal(result.counts, embedding.counts)
    assert (result.contexts is None) == (embedding.contexts is None)
    if result.contexts is not None:
        np.testing.assert_array_equal(result.contexts, embedding.contexts)
    assert result.names.values.equals(embedding.names.values)
    assert (result.kind, result.names.what, result.vectors.dtype) == (embedding.kind, embedding.names.what, np.float32)
    assert result.exponent == 0.75
    metadata = json.loads((tmp_path / "model/metadata/part-00000").read_text())
    assert (metadata["class"], metadata["paramMap"]) == (MODELS[embedding.kind][0], {"vectorSize": 3})
    with pytest.raises(UsageError, match="there is something already"):
        embedding.save(path)


def test_load_when_files_are_not_as_saved_then_error_says_what(words, tmp_path):
    with pytest.raises(CheckpointMissingError, match="expected the folder of a model"):
        Embedding.load(str(tmp_path / "nothing"))
    words.save(str(tmp_path / "model"))
    at = tmp_path / "model/metadata/part-00000"
    messages = at.read_text()
    at.write_text(messages.replace('"ps2.embedding.v1"', '"ps2.embedding.v9"'))
    with pytest.raises(UsageError, match=r"expected an embedding of format 'ps2.embedding.v1', got 'ps2.embedding.v9'"):
        Embedding.load(str(tmp_path / "model"))
    at.write_text(messages.replace('"shape": [5, 3]', '"shape": [5, 4]'))
    with pytest.raises(CheckpointCorruptError, match=r"expected vectors of shape \(5, 4\)"):
        Embedding.load(str(tmp_path / "model"))
    at.write_text(messages)
    (tmp_path / "model/vectors.npy").write_bytes(b"x")
    with pytest.raises(CheckpointCorruptError, match=r"vectors.npy: its checksum is not that of the metadata"):
        Embedding.load(str(tmp_path / "model"))


@pytest.mark.parametrize("binary", [False, True])
def test_word2vec_file_when_written_then_gensim_reads_same(words, vertices, binary, tmp_path):
    from gensim.models import KeyedVectors

    for embedding in (words, vertices):
        path = str(tmp_path / embedding.kind)
        embedding.saveWord2Vec(path, binary=binary)
        result = KeyedVectors.load_word2vec_format(path, binary=binary)
        assert result.index_to_key == [str(name) for name in embedding.names.values.to_pylist()]
        np.testing.assert_array_equal(result.vectors, embedding.vectors)
    there, ours = result.most_similar(str(-7), topn=2), vertices.similar(-7, 2)
    assert [name for name, _ in there] == [str(name) for name, _ in ours]


@pytest.mark.parametrize("name", ["New York", "", "a\tb", "line\n"])
def test_word2vec_file_when_name_is_invalid_then_nothing_written(name, tmp_path):
    with pytest.raises(InputError, match="expected names without white space"):
        Embedding([name], [[1.0]]).saveWord2Vec(str(tmp_path / "file"))
    assert not (tmp_path / "file").exists()


def test_plane_when_drawn_then_it_has_the_most_variance(tmp_path):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(50, 6)) * [1, 9, 1, 4, 1, 1]
    points, shares = Embedding(range(50), x).plane()
    centred = x - x.mean(axis=0)
    np.testing.assert_allclose(points.var(axis=0), np.linalg.svd(centred, compute_uv=False)[:2] ** 2 / 50, rtol=1e-4)
    np.testing.assert_allclose(shares, points.var(axis=0) / centred.var(axis=0).sum(), rtol=1e-4)
    assert Embedding(range(50), x[:, :1]).plane()[0].shape == (50, 2)


def test_picture_when_names_have_classes_then_each_has_colour(words):
    axes = words.plotEmbedding(classes={"oak": "tree", "elm": "tree", "été": "season"})
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["others", "tree", "season"]
    assert {text.get_text() for text in axes.texts} == set(WORDS)
    assert [text.get_text() for text in words.plotEmbedding(labels=["elm"]).texts] == ["elm"]
    many = Embedding(range(MAX_POINTS + 1), np.random.default_rng(0).normal(size=(MAX_POINTS + 1, 2)))
    axes = many.plotEmbedding()
    assert f"the {MAX_POINTS:,} most frequent" in axes.get_title("left")
    assert not axes.texts
