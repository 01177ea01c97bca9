"""How a trained model scores rows, as plain data: what ``transform`` does, where there is no Spark and no server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from ps2.algorithms.frame.heads import ClassHead, ClusterHead, SharesHead, ValueHead, VectorHead, VotesHead

Head = ClassHead | ClusterHead | SharesHead | ValueHead | VectorHead | VotesHead
HEADS = {head.__name__: head for head in (ClassHead, ClusterHead, SharesHead, ValueHead, VectorHead, VotesHead)}


@dataclass(frozen=True)
class FeatureScoring:
    """Scores vectors of features.

    Attributes:
        loader: "module:class" whose ``load(path)`` reads the saved model.
        dim: number of features.
        missing: whether NaN is a missing value.
        features: column of vectors, or columns of numbers.
        head: turns margins into predictions.
        outputs: name and kind of each column that is added; the kinds are those of ``with_predictions``.
        margin: column that margins begin with; None: they begin with what the model says.
        rounds: number of rounds of trees that predict; None: all, or the model has none.
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
        """Names of the columns that are read."""
        features = (self.features,) if isinstance(self.features, str) else self.features
        return features if self.margin is None else (*features, self.margin)


@dataclass(frozen=True)
class WordScoring:
    """Means of the vectors of lists of words.

    Attributes:
        loader: see ``FeatureScoring``.
        column: column of lists of strings.
        output: column that is added.
    """

    kind: ClassVar[str] = "words"

    loader: str
    column: str
    output: str


@dataclass(frozen=True)
class PairScoring:
    """Scores of pairs of vertices, or ratings of pairs of users and items.

    Attributes:
        loader: see ``FeatureScoring``.
        first, second: columns of ids.
        output: column that is added.
        integers: whether ids of the first and of the second are integers; else they are strings.
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
    """Scores rows of hashed keys with an export, by ``ps2.serving.Scorer``.

    Attributes:
        columns: columns that keys are made of.
        prediction: column that is added; "": none.
        probability: column of probabilities of both classes; "": none.
        threshold: label 1 needs a probability above it; None: the score is the prediction.
    """

    kind: ClassVar[str] = "keys"

    columns: tuple[str, ...]
    prediction: str
    probability: str = ""
    threshold: float | None = None


Scoring = FeatureScoring | WordScoring | PairScoring | KeyScoring
KINDS: Mapping[str, type[Any]] = {one.kind: one for one in (FeatureScoring, WordScoring, PairScoring, KeyScoring)}


def to_json(scoring: Scoring) -> dict[str, Any]:
    """Return JSON data of which ``from_json`` makes the same."""
    content = {"kind": scoring.kind, **asdict(scoring)}
    if isinstance(scoring, FeatureScoring):
        content["head"] = {"head": type(scoring.head).__name__, **asdict(scoring.head)}
    return content


def from_json(content: Mapping[str, Any]) -> Scoring:
    """Return what ``to_json`` described; KeyError or TypeError if it is something else."""
    fields = {name: _frozen(value) for name, value in content.items()}
    cls = KINDS[fields.pop("kind")]
    if cls is FeatureScoring:
        head = {name: _frozen(value) for name, value in fields["head"].items()}
        fields["head"] = HEADS[head.pop("head")](**head)
    scoring: Scoring = cls(**fields)
    return scoring


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
