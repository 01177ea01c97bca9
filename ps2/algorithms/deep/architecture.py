"""The kind, the embedding size and the layers of a deep model. Pure."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

import numpy as np

from ps2.algorithms.deep.interactions import (
    CompressedInteraction,
    CrossNetwork,
    HistoryAttention,
    Interaction,
    SelfAttention,
)
from ps2.algorithms.deep.layers import Layer, stacked
from ps2.array_types import Float32s
from ps2.errors import ConfigError

KindName = Literal["deepfm", "wide-deep", "dcn", "xdeepfm", "autoint", "din", "two-tower"]
KINDS: tuple[KindName, ...] = get_args(KindName)
# The interactions of the kinds that have one.
INTERACTIONS: dict[str, type[Interaction]] = {
    "dcn": CrossNetwork,
    "xdeepfm": CompressedInteraction,
    "autoint": SelfAttention,
    "din": HistoryAttention,
}
# Prefixes of the layers' names: in the users' tower, in the items' tower, and in models without towers.
LEFT, RIGHT, DEEP = "left", "right", "deep"


@dataclass(frozen=True)
class Architecture:
    """The kind and the sizes of a model.

    Attributes:
        kind: "deepfm" (Guo et al., 2017), "wide-deep" (Cheng et al., 2016), "two-tower" (Yi et al., 2019), or a kind
            of ``INTERACTIONS``.
        k: the size of an embedding vector.
        fields: the number of fields of a row.
        deep: the number of leading fields that are inputs of the layers or, in "two-tower", of the left tower. The
            other fields have only linear weights ("wide-deep"), or are inputs of the right tower ("two-tower").
        hidden: the sizes of the hidden layers; for "two-tower", the last size is that of both towers' vectors.
        dropout: the probability that the training drops an output of a hidden layer, in [0, 1).
        temperature: the divisor of the cosine of the two towers' vectors.
        interaction: the interaction, for the kinds of ``INTERACTIONS``; None there: one of the default sizes.
    """

    kind: KindName
    k: int
    fields: int
    deep: int
    hidden: tuple[int, ...] = field(default=(400, 400))
    dropout: float = 0.0
    temperature: float = 0.1
    interaction: Interaction | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(f"kind: expected one of {', '.join(KINDS)}, got {self.kind!r}")
        object.__setattr__(self, "hidden", tuple(int(size) for size in self.hidden))
        if self.interaction is None and self.kind in INTERACTIONS:
            object.__setattr__(self, "interaction", INTERACTIONS[self.kind]())
        for name, value in (("k", self.k), ("fields", self.fields), ("deep", self.deep), *enumerate(self.hidden)):
            if value < 1:
                raise ConfigError(f"{'hidden' if isinstance(name, int) else name}: expected at least 1, got {value}")
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"dropout: expected a number in [0, 1), got {self.dropout}")
        if self.deep > self.fields or (self.has_towers and self.deep == self.fields):
            raise ConfigError(f"deep: expected at most {self.fields - self.has_towers} fields, got {self.deep}")
        if self.has_towers and not self.hidden:
            raise ConfigError("hidden: expected at least one layer for each tower, got none")
        if not 0 < self.temperature < math.inf:
            raise ConfigError(f"temperature: expected a finite positive number, got {self.temperature}")

    @property
    def has_towers(self) -> bool:
        return self.kind == "two-tower"

    @property
    def has_pairs(self) -> bool:
        """Whether the margin includes the inner products of all pairs of a row's vectors."""
        return self.kind == "deepfm"

    @property
    def num_linear(self) -> int:
        """The number of linear weights of a key, which come before its vector: 1, or 0 for towers and DIN."""
        return 0 if self.has_towers or self.kind == "din" else 1

    @property
    def width(self) -> int:
        """The number of weights of a key: its linear weight and its vector."""
        return self.k + self.num_linear

    @property
    def input_fields(self) -> int:
        """The number of fields whose vectors are inputs of layers."""
        return self.fields if self.has_towers else self.deep

    def layers(self) -> tuple[Layer, ...]:
        """Return all layers, from the inputs to the output; for "two-tower", the left tower, then the right tower.

        The layers of an interaction come last.
        """
        if not self.has_towers:
            interaction = self.interaction.layers(self.deep, self.k) if self.interaction else ()
            return (*stacked(DEEP, self.deep * self.k, (*self.hidden, 1)), *interaction)
        return (
            *stacked(LEFT, self.deep * self.k, self.hidden),
            *stacked(RIGHT, (self.fields - self.deep) * self.k, self.hidden),
        )

    def initial(self, seed: int) -> list[Float32s]:
        """Return the initial weights of all layers, in the order of ``layers``."""
        return [layer.initial(np.random.default_rng([seed, index])) for index, layer in enumerate(self.layers())]

    def to_json(self) -> dict[str, Any]:
        """Return the architecture as JSON data for ``from_json``."""
        return {**asdict(self), "hidden": list(self.hidden)}

    @staticmethod
    def from_json(content: dict[str, Any]) -> Architecture:
        """Return the architecture from the result of ``to_json``."""
        sizes = content.get("interaction")
        return Architecture(**{**content, "interaction": sizes and INTERACTIONS[content["kind"]](**sizes)})
