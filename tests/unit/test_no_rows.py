"""Models that are asked about no rows answer with none, in the shape and dtype of other answers."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from tree_builder import TreeBuilder

from ps2.algorithms import (
    DeepWalkModel,
    DictionaryLearningModel,
    Embedding,
    FactorizationMachine,
    FMClassificationModel,
    FMRegressionModel,
    GBTClassificationModel,
    GBTModel,
    GBTRegressionModel,
    KMeansClusters,
    KMeansModel,
    LDAModel,
    LDATopics,
    LinearModel,
    LinearRegressionModel,
    LinearSVCModel,
    LogisticRegressionModel,
    MatrixFactorizationModel,
    MatrixFactors,
    Metric,
    MetricLearningModel,
    RandomForest,
    RandomForestClassificationModel,
    RandomForestRegressionModel,
    SparseCoder,
    Word2VecModel,
)
from ps2.algorithms.linear.model import KeyedValues, Weights, head_of
from ps2.algorithms.linear.plan import Problem
from ps2.algorithms.trees.tree import Forest
from ps2.mlflow.predicting import FeaturePredictor, PairPredictor, RatingPredictor, WordPredictor

DIM = 3
RNG = np.random.default_rng(5)
X = RNG.integers(1, 5, (4, DIM)).astype(float)


def weights(loss, width=1, biases=1):
    return Weights(Problem(loss, DIM, width=width), RNG.normal(size=(DIM, width)), RNG.normal(size=biases))


def keyed(loss, width=1, biases=1):
    problem = Problem(loss, DIM, width=width)
    keyed = KeyedValues(np.arange(problem.size), RNG.normal(size=problem.size))
    return Weights(problem, keyed, RNG.normal(size=biases))


def forest(loss="squared", width=1, trees=2):
    grown = []
    for _ in range(trees * width):
        draft = TreeBuilder(0.0, 1.0, 1)
        draft.split(0, 1, 2.0, True, 1.0)
        for value in (-1.0, 1.0):
            draft.add_child(0, value, 1.0, 1)
        grown.append(draft.finish())
    return Forest(tuple(grown), np.zeros(width), DIM, loss)


def voting():
    grown = forest()
    return RandomForest(grown, tuple(RNG.dirichlet(np.ones(3), len(tree)) for tree in grown.trees))


LOSSES = {"logistic": (1, 1), "softmax": (3, 3), "hinge": (1, 1), "squared": (1, 1), "huber": (1, 2)}
MACHINES = {"fmLogistic": (3, 1), "fmSquared": (3, 1)}
CODER = SparseCoder(RNG.normal(size=(2, DIM)), 0.2)
FACTORS = MatrixFactors(np.arange(3), ["x", "y"], RNG.normal(size=(3, 2)), RNG.normal(size=(2, 2)))
GRAPH = Embedding(np.arange(4), RNG.normal(size=(4, 3)), [4, 3, 2, 1], "deepwalk")
WORDS = Embedding(["oak", "elm"], RNG.normal(size=(2, 3)))
METRIC = Metric(RNG.normal(size=(2, DIM)))
TOPICS = LDATopics(RNG.integers(1, 9, (DIM, 2)), [0.5, 0.5], 0.1)
PREDICTING = {
    **{
        f"{kind.__name__} {loss}": cls(made, head_of(made.problem, {}))
        for cls, losses in ((LinearModel, LOSSES), (FactorizationMachine, MACHINES))
        for loss, shape in losses.items()
        for kind in (weights, keyed)
        for made in [kind(loss, *shape)]
    },
    "boosted": GBTModel(forest()),
    "boosted logistic": GBTModel(forest("logistic")),
    "boosted softmax": GBTModel(forest("softmax", 3)),
    "boosted no tree": GBTModel(forest(trees=0)),
    "forest": RandomForest(forest(), ()),
    "forest classes": voting(),
    "k-means": KMeansClusters(RNG.normal(size=(2, DIM))),
    "k-means cosine": KMeansClusters(RNG.normal(size=(2, DIM)), "cosine"),
}
METHODS = ("predict", "predictProbability", "margins", "leaves", "nodes", "contributions")
ANSWERS = {
    **{
        f"{name}: {method}": getattr(model, method)
        for name, model in PREDICTING.items()
        for method in METHODS
        if hasattr(model, method)
    },
    "metric": METRIC.transform,
    "metric distances": lambda x: METRIC.distances(x, x),
    "topics": TOPICS.transform,
    "codes": CODER.transform,
    "codes with zeros": CODER.margins,
}
FORMS = {
    "array": np.asarray,
    "sparse": sp.csr_array,
    "DataFrame": pd.DataFrame,
    "untyped": lambda x: pd.DataFrame(x).astype(object) if len(x) else pd.DataFrame(columns=range(DIM)),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ANSWERS)
def test_model_when_there_are_no_rows_then_no_answers(name, form):
    if form == "untyped":
        some, none = ANSWERS[name](X), ANSWERS[name](FORMS[form](X[:0]))
    else:
        some, none = (ANSWERS[name](FORMS[form](x)) for x in (X, X[:0]))
    assert (none is None) == (some is None)
    if some is not None:
        assert (none.shape, none.dtype) == ((0, *some.shape[1:]), some.dtype)


PAIRS = {
    "ratings": lambda n: FACTORS.predict(np.arange(3)[:n], ["x", "y", "z"][:n]),
    "ratings of lists": lambda n: FACTORS.predict([0, 1, 2][:n], ["x", "y", "z"][:n]),
    "edges": lambda n: GRAPH.score([0, 1, 2][:n], [1, 2, 3][:n]),
    "sentences": lambda n: WORDS.transform([["oak"], [], ["elm", "ash"]][:n]),
}


@pytest.mark.parametrize("name", PAIRS)
def test_model_when_there_are_no_names_then_no_answers(name):
    some, none = PAIRS[name](3), PAIRS[name](0)
    assert (none.shape, none.dtype) == ((0, *some.shape[1:]), some.dtype)


COLUMNS = ("a", "b", "c")
FEATURES = {
    "binomial": LogisticRegressionModel(weights("logistic")),
    "multinomial": LogisticRegressionModel(weights("softmax", 3, 3)),
    "svc": LinearSVCModel(weights("hinge")),
    "regression": LinearRegressionModel(weights("squared")),
    "machine classes": FMClassificationModel(weights("fmLogistic", 3)),
    "machine": FMRegressionModel(weights("fmSquared", 3)),
    "boosted": GBTRegressionModel(GBTModel(forest()))._set(leafCol="leaf", contribCol="why"),
    "boosted softmax": GBTClassificationModel(GBTModel(forest("softmax", 3)))._set(leafCol="leaf", contribCol="why"),
    "forest": RandomForestRegressionModel(RandomForest(forest(), ())),
    "forest classes": RandomForestClassificationModel(voting()),
    "k-means": KMeansModel(KMeansClusters(RNG.normal(size=(2, DIM)))),
    "topics": LDAModel(TOPICS),
    "metric": MetricLearningModel(METRIC),
    "codes": DictionaryLearningModel(CODER),
}


def check_frames(predictor, some, *empty):
    expected = predictor.predict(some)
    for frame in empty:
        answer = predictor.predict(frame)
        assert (len(answer), list(answer.columns)) == (0, list(expected.columns))
        numbers = [name for name in expected.columns if expected[name].dtype != object]
        assert answer.dtypes[numbers].tolist() == expected.dtypes[numbers].tolist()


@pytest.mark.parametrize("in_columns", [False, True])
@pytest.mark.parametrize("name", FEATURES)
def test_pyfunc_when_there_are_no_rows_then_no_answers(name, in_columns):
    model = FEATURES[name].copy()
    if in_columns and not model.hasParam("featuresCols"):
        return
    if in_columns:
        model._set(featuresCols=list(COLUMNS))
    scoring = model.scoring()
    some = pd.DataFrame(X, columns=list(COLUMNS)) if in_columns else pd.DataFrame({scoring.features: list(X)})
    predictor = FeaturePredictor(scoring, model.fitted)
    check_frames(predictor, some, some[:0], pd.DataFrame(columns=list(some.columns)))
    if not in_columns:
        assert len(predictor.predict(X[:0])) == len(predictor.predict(sp.csr_array((0, DIM)))) == 0


def test_pyfunc_when_there_are_no_names_then_no_answers():
    words = Word2VecModel(WORDS)._set(inputCol="words", outputCol="mean")
    some = pd.DataFrame({"words": [["oak"], []]})
    check_frames(WordPredictor(words.scoring(), WORDS), some, some[:0], pd.DataFrame(columns=["words"]))
    graph = DeepWalkModel(GRAPH)._set(srcCol="user", dstCol="friend")
    some = pd.DataFrame({"user": [1], "friend": [2]})
    check_frames(PairPredictor(graph.scoring(), GRAPH), some, some[:0], pd.DataFrame(columns=["user", "friend"]))
    ratings = MatrixFactorizationModel(FACTORS)
    some = pd.DataFrame({"user": [1], "item": ["x"]})
    check_frames(RatingPredictor(ratings.scoring(), FACTORS), some, some[:0], pd.DataFrame(columns=["user", "item"]))
