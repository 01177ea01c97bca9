"""The base class of online models. Their weights are on the servers, and may change while they predict."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from pyspark.ml import Model
from pyspark.sql import DataFrame

from ps2.algorithms.frame.key_hasher import KeyParams
from ps2.algorithms.frame.key_predictions import with_class_predictions
from ps2.algorithms.frame.models import FittedModel
from ps2.algorithms.frame.scoring import KeyScoring
from ps2.algorithms.online.plan import INTERCEPT, OnlinePlan
from ps2.algorithms.online.program import OnlineProgram
from ps2.algorithms.online.scoring import BIAS, probabilities
from ps2.algorithms.online.settings import OnlineSettings
from ps2.algorithms.training.streams.learner import BatchProgress
from ps2.client.embedding_table import EmbeddingTable
from ps2.coordinator.context import PS2Context
from ps2.data.hashing import FieldHasher
from ps2.data.key_rows import KeyRows
from ps2.errors import StoppedError

# Folder of the table in the folder of a saved model.
TABLE = "table"


@dataclass(frozen=True)
class LiveModel:
    """The parts of an online model on the servers.

    Attributes:
        name: name of the table's matrix on the fleet.
        settings: settings of the model.
        table: its weights, with the state of their optimizer.
        hasher: makes keys from columns.
    """

    name: str
    settings: OnlinePlan
    table: EmbeddingTable
    hasher: FieldHasher

    def to_json(self) -> dict[str, Any]:
        """Return JSON data that must be equal for an estimator that goes on with the model."""
        return {**self.settings.to_json(), "hasher": self.hasher.to_json()}

    @property
    def program(self) -> OnlineProgram:
        return OnlineProgram(self.settings, self.table)


def new_name() -> str:
    """Return a name that no other model on a fleet has."""
    return f"online-{uuid.uuid4().hex[:12]}"


class OnlineParams(OnlineSettings, KeyParams):
    """An online estimator or model."""

    def getLocalSteps(self) -> bool:
        """Get localSteps: by default True, but with 'adam'."""
        if self.isSet(self.localSteps):
            return bool(self.getOrDefault(self.localSteps))
        return self.getOptimizer() != "adam"


class OnlineModel(OnlineParams, FittedModel, Model):
    """Base class of online models. Copies share the table on the servers; ``free()`` frees it."""

    # The progressive validation of each pass.
    _progress = cast("Sequence[BatchProgress]", ())

    @property
    def _live(self) -> LiveModel:
        live: LiveModel = self._fitted
        return live

    @property
    def name(self) -> str:
        """Name of the model on the fleet, by which a stream finds it again."""
        return self._live.name

    @property
    def settings(self) -> OnlinePlan:
        """What the model is made from."""
        return self._live.settings

    @property
    def table(self) -> EmbeddingTable:
        """The weights of keys, with the state of their optimizer."""
        return self._live.table

    @property
    def numKeys(self) -> int:
        """Number of keys that have weights."""
        return self.table.keysCount()

    @property
    def intercept(self) -> float:
        """The intercept; 0 for a model without one."""
        if not self.settings.intercept:
            return 0.0
        return float(self.table.pull(np.array([INTERCEPT]))[0, 0])

    @property
    def progress(self) -> list[BatchProgress]:
        """Progressive validation of the last ``fit`` or ``partialFit``: one entry for each pass over the rows."""
        return list(self._progress)

    def __repr__(self) -> str:
        return f"{type(self).__name__}: uid={self.uid}, name={self.name}"

    def weights(self, keys: Any) -> Any:
        """Return the weights of keys: float32, ``keys.shape + (k,)``, the linear weight first."""
        return self.table.pull(keys)

    def predictProbability(self, rows: KeyRows) -> Any:
        """Return the probability of label 1 for rows of keys: float64 of shape (n,)."""
        return probabilities(self._live.program.margins(rows))

    def _transform(self, dataset: DataFrame) -> DataFrame:
        if PS2Context.getActive() is None:
            raise StoppedError(f"{self!r}: its fleet was stopped; an export scores without one (ps2.serving.Scorer)")
        return with_class_predictions(dataset, self._live.hasher, self._live.program.margins, self)

    def scoring(self) -> KeyScoring:
        """Return how ``transform`` scores rows, as plain data, for scorers of an export without Spark and servers."""
        names = self.getPredictionCol(), self.getProbabilityCol()
        return KeyScoring(tuple(self._live.hasher.columns), *names, self.getThreshold())

    def export(self, path: str, since: Any = None) -> Any:
        """Write the weights to a folder, for ``ps2.serving.Scorer``; see ``EmbeddingTable.export``."""
        return self.table.export(
            path,
            since,
            kind=self.settings.kind,
            config={"kind": self.settings.kind},
            hasher=self._live.hasher.to_json(),
            dense={BIAS: np.array([self.intercept])},
        )

    def free(self) -> None:
        """Free the model's memory on the servers; it cannot be used any more."""
        self.table.free()

    # -- files -------------------------------------------------------------------------------------------------------

    def _write_content(self, url: str) -> dict[str, Any]:
        self.table.save(f"{url}/{TABLE}")
        return self._live.to_json()

    @classmethod
    def _read_content(cls, path: str, url: str, content: Any) -> LiveModel:
        """Read a model to the fleet of the active context."""
        of_model = dict(content)
        hasher = FieldHasher.from_json(of_model.pop("hasher"))
        name = new_name()
        table = EmbeddingTable.load(f"{url}/{TABLE}", name)
        return LiveModel(name, OnlinePlan.from_json(of_model), table, hasher)
