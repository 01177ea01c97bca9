"""Params of deep models, and how they become an ``Architecture``, ``DeepOptions`` and a table's settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.ml.param import Param, TypeConverters
from pyspark.ml.param.shared import HasRegParam, HasStepSize

from ps2.algorithms.deep.architecture import Architecture
from ps2.algorithms.deep.options import DeepOptions
from ps2.algorithms.estimators.learning_params import (
    OF_CLASSES,
    OF_KEYS,
    ClassParams,
    LearningParams,
    LearningSetters,
    VectorParams,
    VectorSetters,
)
from ps2.algorithms.estimators.params import (
    COUNT,
    NOT_NEGATIVE,
    POSITIVE,
    Check,
    any_case,
    described,
    getter,
    one_of,
    own_param,
    setter,
)
from ps2.client.embedding_optimizers import TableOptimizer
from ps2.client.embedding_settings import TableSettings

OPTIMIZERS = ("ftrl+adagrad", "adagrad", "adam", "ftrl", "sgd")
TOWER_OPTIMIZERS = ("adagrad", "adam", "sgd")
LOSSES = ("softmax", "logistic")
# Name of the learning rate of each optimizer of a table.
RATES = {"ftrl+adagrad": ("lr", "alpha"), "ftrl": ("alpha",)}


class DeepParams(VectorParams, LearningParams, HasStepSize, HasRegParam):
    """Params of deep estimators, and of their models."""

    _RANGES: Mapping[str, Check] = {
        **LearningParams._RANGES,
        "stepSize": POSITIVE,
        "regParam": NOT_NEGATIVE,
        "factorSize": COUNT,
        "hiddenLayers": (lambda sizes: all(size >= 1 for size in sizes), "sizes of at least 1"),
        "dropoutRate": (lambda value: 0 <= value < 1, "a number in [0, 1)"),
        "embeddingStepSize": POSITIVE,
        "weightDecay": NOT_NEGATIVE,
        "initStd": NOT_NEGATIVE,
        "staleness": (lambda value: value >= 0, "a number that is not negative"),
        "optimizer": one_of(OPTIMIZERS),
    }

    hiddenLayers: Param[list[int]] = own_param("hiddenLayers", "sizes of the layers", TypeConverters.toListInt)
    dropoutRate: Param[float] = own_param(
        "dropoutRate", "share of a hidden layer's outputs that a training drops", TypeConverters.toFloat
    )
    batchSize: Param[int] = described(
        LearningParams.batchSize,
        "rows of a step: of all workers together with staleness 0, else of the worker that takes the step",
    )
    embeddingStepSize: Param[float] = own_param(
        "embeddingStepSize", "learning rate of the embeddings (stepSize is that of the layers)", TypeConverters.toFloat
    )
    optimizer: Param[str] = own_param(
        "optimizer",
        f"optimizer of the embeddings: {', '.join(OPTIMIZERS)}; ftrl+adagrad is FTRL-Proximal for linear weights and "
        "Adagrad for vectors. Layers have Adam",
        any_case(OPTIMIZERS),
    )
    weightDecay: Param[float] = own_param(
        "weightDecay", "decay of the layers' weights (regParam is the embeddings' L2 penalty)", TypeConverters.toFloat
    )
    staleness: Param[int] = own_param(
        "staleness",
        "clocks that a worker may be ahead of the slowest one; 0: one step per clock by all workers' gradients",
        TypeConverters.toInt,
    )

    def _set_defaults(self) -> None:
        super()._set_defaults()
        self._setDefault(
            factorSize=16,
            hiddenLayers=[128, 64],
            dropoutRate=0.0,
            batchSize=1024,
            embeddingStepSize=0.05,
            optimizer="ftrl+adagrad",
            weightDecay=0.0,
            regParam=0.0,
            initStd=0.01,
            staleness=0,
            maxIter=5,
            stepSize=0.001,
        )

    getHiddenLayers = getter(hiddenLayers)
    getDropoutRate = getter(dropoutRate)
    getEmbeddingStepSize = getter(embeddingStepSize)
    getWeightDecay = getter(weightDecay)
    getStaleness = getter(staleness)


class ClickParams(ClassParams, DeepParams):
    """Params of models of clicks: labels are 0 and 1."""

    _RANGES: Mapping[str, Check] = {**DeepParams._RANGES, **OF_CLASSES}


class TowerParams(DeepParams):
    """Params of two towers."""

    _RANGES: Mapping[str, Check] = {
        **DeepParams._RANGES,
        "optimizer": one_of(TOWER_OPTIMIZERS),
        "loss": one_of(LOSSES),
        "temperature": POSITIVE,
    }

    loss: Param[str] = own_param(
        "loss",
        "softmax: rows are positive pairs, and a batch's other items the negatives; logistic: labels are 0 and 1",
        any_case(LOSSES),
    )
    temperature: Param[float] = own_param(
        "temperature", "divides the cosine of the two towers' vectors", TypeConverters.toFloat
    )
    userCols: Param[list[str]] = own_param(
        "userCols",
        "columns of the users' tower; all others of the key columns are the items'",
        TypeConverters.toListString,
    )

    def _set_defaults(self) -> None:
        super()._set_defaults()
        self._setDefault(loss="softmax", temperature=0.1, optimizer="adagrad", hiddenLayers=[64, 32])

    getLoss = getter(loss)
    getTemperature = getter(temperature)
    getUserCols = getter(userCols)


class DeepSetters(LearningSetters, VectorSetters, DeepParams):
    """Setters of the params of a training."""

    setStepSize = setter(DeepParams.stepSize)
    setRegParam = setter(DeepParams.regParam)
    setHiddenLayers = setter(DeepParams.hiddenLayers)
    setDropoutRate = setter(DeepParams.dropoutRate)
    setEmbeddingStepSize = setter(DeepParams.embeddingStepSize)
    setWeightDecay = setter(DeepParams.weightDecay)
    setStaleness = setter(DeepParams.staleness)


def options_of(params: DeepParams) -> DeepOptions:
    """Return how to train."""
    return DeepOptions(
        epochs=params.getMaxIter(),
        batch=params.getBatchSize(),
        lr=params.getStepSize(),
        decay=params.getWeightDecay(),
        loss=params.getOrDefault("loss") if params.hasParam("loss") else "logistic",
        staleness=params.getStaleness(),
        seed=params._seed,
    )


def table_settings(params: DeepParams, architecture: Architecture) -> dict[str, Any]:
    """Return the arguments of the ``EmbeddingTable``."""
    optimizer, penalty = params.getOptimizer(), params.getRegParam()
    rates = dict.fromkeys(RATES.get(optimizer, ("lr",)), params.getEmbeddingStepSize())
    penalties = {"l2": penalty, **({"decay": penalty} if optimizer == "ftrl+adagrad" else {})} if penalty else {}
    return {
        "k": architecture.width,
        "optimizer": optimizer,
        "zeroColumns": architecture.first,
        "init": "normal",
        "initScale": params.getInitStd(),
        "seed": params._seed,
        **params._key_arguments(),
        **rates,
        **penalties,
    }


# Arguments of an ``EmbeddingTable`` that are no hyperparameters of its optimizer.
OF_TABLE = ("k", "optimizer", "zeroColumns", "init", "initScale", "seed", "clock", *OF_KEYS)


def settings_of(arguments: Mapping[str, Any]) -> TableSettings:
    """Return the settings of the table that these arguments make."""
    given = {name: value for name, value in arguments.items() if name not in OF_TABLE}
    zeros = arguments["zeroColumns"]
    steps = TableOptimizer.of(arguments["optimizer"], arguments["k"], zeros, given)
    return TableSettings(steps, zero_columns=zeros)
