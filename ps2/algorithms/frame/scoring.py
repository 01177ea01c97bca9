"""Describe as plain data how a trained model scores rows, for scorers without Spark and servers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, get_args

from ps2.algorithms.frame.heads import Head

HEADS = {head.__name__: head for head in get_args(Head)}


@dataclass(frozen=True)
class FeatureScoring:
    """Scores vectors of features.

    Attributes:
        loader: the class whose ``load(path)`` reads the saved model, as "module:class".
        missing: whether NaN is a missing value, not a fault.
        features: the name of a column of vectors, or the names of columns of numbers.
        outputs: the name and kind of each column that is added; for the kinds see ``with_predictions``.
        margin: the column of initial margins, to which the model's margins are added; None: there is no such column.
        rounds: the number of boosting rounds whose trees predict; None: all rounds, or the model has no rounds.
    """

    kind: ClassVar[str] = "features"

    loader: str
    dim: int
    missing: bool
    features: str | tuple[str, ...]
    head: Head
    outputs: tuple[tuple[str, str], ...]
    margin: str | None = None
    rounds: int | None = None

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the columns that are read."""
        features = (self.features,) if isinstance(self.features, str) else self.features
        return features if self.margin is None else (*features, self.margin)


@dataclass(frozen=True)
class WordScoring:
    """Scores lists of words, in ``column``, by the mean of the words' vectors; ``loader`` as in ``FeatureScoring``."""

    kind: ClassVar[str] = "words"

    loader: str
    column: str
    output: str


@dataclass(frozen=True)
class PairScoring:
    """Scores pairs of vertices, or rates pairs of users and items.

    Attributes:
        loader: see ``FeatureScoring``.
        first, second: the columns of ids.
        integers: for each of the two columns, True if its ids are integers, and False if they are strings.
        directed: whether pairs of vertices are directed.
    """

    kind: ClassVar[str] = "pairs"

    loader: str
    first: str
    second: str
    output: str
    integers: tuple[bool, bool]
    directed: bool = False


@dataclass(frozen=True)
class KeyScoring:
    """Scores rows of hashed keys with an export, which ``ps2.serving.Scorer`` reads.

    Attributes:
        columns: the columns whose values become keys.
        prediction: the column of predictions that is added; "": no such column is added.
        probability: the column of the probabilities of both classes that is added; "": no such column is added.
        threshold: predict label 1 if its probability is above this; None: the prediction is the score.
    """

    kind: ClassVar[str] = "keys"

    columns: tuple[str, ...]
    prediction: str
    probability: str = ""
    threshold: float | None = None


Scoring = FeatureScoring | WordScoring | PairScoring | KeyScoring
KINDS: Mapping[str, type[Any]] = {cls.kind: cls for cls in (FeatureScoring, WordScoring, PairScoring, KeyScoring)}


def to_json(scoring: Scoring) -> dict[str, Any]:
    """Encode a scoring as JSON data."""
    content = {"kind": scoring.kind, **asdict(scoring)}
    if isinstance(scoring, FeatureScoring):
        content["head"] = {"head": type(scoring.head).__name__, **asdict(scoring.head)}
    return content


def from_json(content: Mapping[str, Any]) -> Scoring:
    """Decode a scoring that ``to_json`` encoded; raise KeyError or TypeError for other data."""
    fields = {name: _as_tuples(value) for name, value in content.items()}
    cls = KINDS[fields.pop("kind")]
    if cls is FeatureScoring:
        head = {name: _as_tuples(value) for name, value in fields["head"].items()}
        fields["head"] = HEADS[head.pop("head")](**head)
    scoring: Scoring = cls(**fields)
    return scoring


def _as_tuples(value: Any) -> Any:
    return tuple(map(_as_tuples, value)) if isinstance(value, list) else value
