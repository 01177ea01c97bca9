"""``OnlinePlan``: the settings of an online model and its ``EmbeddingTable``, and their JSON form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np

from ps2.algorithms.online import kernels
from ps2.client.embedding_settings import TableOptimizer, TableSettings
from ps2.client.embedding_table import EmbeddingTable
from ps2.errors import ConfigError
from ps2.ops.kernels import Float64s

OptimizerName = Literal["ftrl", "adagrad", "adam"]
OPTIMIZERS = ("ftrl", "adagrad", "adam")
# The params of the settings that have another name than their param.
PARAMS = {
    "factors": "factorSize",
    "local_steps": "localSteps",
    "intercept": "fitIntercept",
    "init_scale": "initStd",
}
# The intercept is the weight of this key, with value 1 in each row.
INTERCEPT = 2**63 - 1


@dataclass(frozen=True)
class OnlinePlan:
    """The settings of an online model. Their JSON is part of exports and of records of streams.

    Attributes:
        factors: the length of a key's vector; 0: logistic regression.
        optimizer: the optimizer of the linear weights. With "ftrl", Adagrad updates the vectors.
        alpha, beta, l1, l2: the learning rate and penalties of FTRL-Proximal, for the linear weights.
        lr: the learning rate of Adagrad and Adam.
        decay: the L2 penalty of the vectors with "ftrl", else of all weights. A step applies it to its row's keys only.
        local_steps: True: a task takes a step for each row, on a copy of the rows' keys, and sends the changes. False:
            the task sends the sum of the rows' gradients, and the servers take one step.
        intercept: whether the model has an intercept.
        init_scale, seed: the standard deviation and seed of the vectors' initial values.
        key_arguments: the arguments of ``EmbeddingTable`` for managed keys, such as ``maxKeys`` and ``clock``.
    """

    factors: int = 0
    optimizer: OptimizerName = "ftrl"
    alpha: float = 0.2
    beta: float = 1.0
    lr: float = 0.05
    l1: float = 0.0
    l2: float = 0.0
    decay: float = 0.0
    local_steps: bool = True
    intercept: bool = True
    init_scale: float = 0.01
    seed: int = 0
    key_arguments: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.optimizer not in OPTIMIZERS:
            raise ConfigError(f"optimizer: expected one of {', '.join(OPTIMIZERS)}, got {self.optimizer!r}")
        if self.optimizer == "adam" and self.local_steps:
            raise ConfigError("localSteps: expected False with optimizer 'adam', whose steps do not add up, got True")
        if not self.is_ftrl and self.l1:
            raise ConfigError(f"l1: expected 0 with {self.optimizer!r}, whose weights are never 0, got {self.l1:g}")

    @property
    def kind(self) -> str:
        """The kind of the model in exports and stream records: "logistic" or "fm"."""
        return "fm" if self.factors else "logistic"

    @property
    def k(self) -> int:
        """The number of weights of a key: a linear weight and ``factors`` more."""
        return 1 + self.factors

    @property
    def is_ftrl(self) -> bool:
        return self.optimizer == "ftrl"

    @property
    def rates(self) -> Float64s:
        """The hyperparameters as one array, float64, shape (7,); ``kernels.ALPHA`` and so on are the positions."""
        rates = np.zeros(7)
        rates[[kernels.ALPHA, kernels.BETA, kernels.L1, kernels.L2]] = self.alpha, self.beta, self.l1, self.l2
        rates[[kernels.LR, kernels.EPS, kernels.DECAY]] = self.lr, 1e-8, self.decay
        return rates

    def new_table(self, name: str | None = None, with_copy: bool = False) -> EmbeddingTable:
        """Create the table on the fleet of the active context, with room for a copy if asked for."""
        init = "normal" if self.factors else "zeros"
        start = {
            "init": init,
            "initScale": self.init_scale,
            "seed": self.seed,
            "withCopy": with_copy,
            **self.key_arguments,
        }
        return EmbeddingTable(self.k, self._optimizer, zeroColumns=1, name=name, **self._hyperparameters, **start)

    def table_settings(self) -> TableSettings:
        """Return the settings of the table that ``new_table`` makes."""
        return TableSettings(TableOptimizer.of(self._optimizer, self.k, 1, self._hyperparameters), zero_columns=1)

    @property
    def _optimizer(self) -> Any:
        return "ftrl+adagrad" if self.is_ftrl and self.factors else self.optimizer

    @property
    def _hyperparameters(self) -> dict[str, Any]:
        if not self.is_ftrl:
            return {"lr": self.lr, "l2": self.decay}
        ftrl = {"alpha": self.alpha, "beta": self.beta, "l1": self.l1, "l2": self.l2}
        return {**ftrl, "lr": self.lr, "decay": self.decay} if self.factors else ftrl

    def params(self) -> dict[str, Any]:
        """Return the settings under the names of the estimators' params."""
        decay = "factorL2" if self.is_ftrl else "l2"
        names = {**PARAMS, "decay": decay}
        values = {names.get(name, name): value for name, value in asdict(self).items() if name != "key_arguments"}
        return values | {name: value for name, value in self.key_arguments.items() if name != "clock"}

    def to_json(self) -> dict[str, Any]:
        content = asdict(self)
        # The format of exports and records of streams calls the arguments of managed keys "life".
        content["life"] = content.pop("key_arguments")
        return content

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> OnlinePlan:
        settings = {name: value for name, value in content.items() if name != "life"}
        return cls(**settings, key_arguments=content.get("life", {}))
