"""The parameters of deep models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ps2.algorithms.frame.key_settings import CROSS, ClassSettings, LearningSettings, VectorSettings
from ps2.algorithms.frame.settings import Flexible, Setting, getter, param, setter

OPTIMIZERS = ("ftrl+adagrad", "adagrad", "adam", "ftrl", "sgd")
# The check of the sizes of layers, and the text for its error.
LAYERS = (lambda sizes: all(size >= 1 for size in sizes), "sizes of at least 1")


# The optimizers of embeddings without linear weights.
VECTOR_OPTIMIZERS = ("adagrad", "adam", "sgd")


def history_columns(value: Any) -> dict[str, str]:
    """Convert a dict from history to candidate, or a list of "history:candidate", to a dict."""
    from pyspark.ml.param import TypeConverters

    if not isinstance(value, Mapping):
        pairs = [text.split(CROSS) for text in TypeConverters.toListString(value)]
        if any(len(pair) != 2 or not all(pair) for pair in pairs):
            raise TypeError(f'historyCols: expected a dict, or a list such as ["clicked:item"], got {value!r}')
        value = dict(pairs)
    return {TypeConverters.toString(name): TypeConverters.toString(candidate) for name, candidate in value.items()}


class DeepSettings(VectorSettings, LearningSettings):
    """The parameters of all deep models."""

    hiddenLayers: Flexible[list[int], Sequence[int]] = param(
        [128, 64], "the sizes of the layers", check=LAYERS, type=list[int], option="hidden"
    )
    dropoutRate: Setting[float] = param(
        0.0,
        "the fraction of a hidden layer's outputs that the training drops at random",
        at_least=0,
        below=1,
        option="dropout",
    )
    batchSize: Setting[int] = param(
        1024,
        "the number of rows of a step: with staleness 0, of all workers together; else of the worker that takes "
        "the step",
        at_least=1,
    )
    maxIter: Setting[int] = param(
        0,
        "the number of passes over the rows; 0: by the number of rows to train on, one pass for 22,223 rows or more, "
        "else the square root of 50,000 / rows, rounded, at most 8",
        at_least=0,
        option="epochs",
    )
    stepSize: Setting[float] = param(
        0.001, "the learning rate of the layers, whose optimizer is Adam", above=0, option="layers-lr"
    )
    embeddingStepSize: Setting[float] = param(
        0.05, "the learning rate of the embeddings (stepSize: the layers)", above=0, option="embedding-lr"
    )
    optimizer: Setting[str] = param(
        "ftrl+adagrad",
        f"the optimizer of the embeddings: {', '.join(OPTIMIZERS)}; ftrl+adagrad: FTRL-Proximal for linear weights, "
        "Adagrad for vectors. The optimizer of the layers is Adam",
        one_of=OPTIMIZERS,
    )
    weightDecay: Setting[float] = param(
        0.0, "Adam's decoupled weight decay for the layers (regParam: the embeddings)", at_least=0, option=None
    )
    regParam: Setting[float] = param(0.0, "the L2 penalty of the embeddings", at_least=0, option=None)
    staleness: Setting[int] = param(
        0,
        "the number of clocks that a worker may be ahead of the slowest worker; 0: each step uses the gradients of all "
        "workers",
        at_least=0,
        option=None,
    )

    getHiddenLayers, setHiddenLayers = getter(hiddenLayers), setter(hiddenLayers)
    getDropoutRate, setDropoutRate = getter(dropoutRate), setter(dropoutRate)
    getStepSize, setStepSize = getter(stepSize), setter(stepSize)
    getEmbeddingStepSize, setEmbeddingStepSize = getter(embeddingStepSize), setter(embeddingStepSize)
    getOptimizer, setOptimizer = getter(optimizer), setter(optimizer)
    getWeightDecay, setWeightDecay = getter(weightDecay), setter(weightDecay)
    getRegParam, setRegParam = getter(regParam), setter(regParam)
    getStaleness, setStaleness = getter(staleness), setter(staleness)


class ClickSettings(ClassSettings, DeepSettings):
    """The parameters of classifiers such as click models, whose labels are 0 and 1."""


class CrossSettings(ClickSettings):
    """The parameters of DCNv2."""

    crossLayers: Setting[int] = param(3, "the number of cross layers", at_least=1)

    getCrossLayers, setCrossLayers = getter(crossLayers), setter(crossLayers)


class CompressedSettings(ClickSettings):
    """The parameters of XDeepFM."""

    cinLayers: Flexible[list[int], Sequence[int]] = param(
        [64, 64],
        "the numbers of feature maps of the layers of the compressed interaction network (CIN)",
        check=(lambda sizes: bool(sizes) and all(size >= 1 for size in sizes), "one or more sizes of at least 1"),
        type=list[int],
        option="cin",
    )

    getCinLayers, setCinLayers = getter(cinLayers), setter(cinLayers)


class AttentionSettings(ClickSettings):
    """The parameters of AutoInt."""

    interactingLayers: Setting[int] = param(3, "the number of interacting layers: self-attention", at_least=1)
    numHeads: Setting[int] = param(2, "the number of attention heads of an interacting layer", at_least=1)
    headSize: Setting[int] = param(16, "the size of the vectors of an attention head", at_least=1)

    getInteractingLayers, setInteractingLayers = getter(interactingLayers), setter(interactingLayers)
    getNumHeads, setNumHeads = getter(numHeads), setter(numHeads)
    getHeadSize, setHeadSize = getter(headSize), setter(headSize)


class HistorySettings(ClickSettings):
    """The parameters of DIN."""

    historyCols: Flexible[dict[str, str], Mapping[str, str] | Sequence[str]] = param(
        {},
        "the columns of histories, arrays of categories, and the categorical column that holds the candidate for each: "
        'a dict, or a list such as ["clicked:item"]; equal values of both have the same key',
        type=history_columns,
        option=None,
        in_model=True,
    )
    attentionLayers: Flexible[list[int], Sequence[int]] = param(
        [36], "the sizes of the hidden layers of the attention to a history", check=LAYERS, type=list[int]
    )
    optimizer: Setting[str] = param(
        "adagrad",
        f"the optimizer of the embeddings: {', '.join(VECTOR_OPTIMIZERS)}. The optimizer of the layers is Adam",
        one_of=VECTOR_OPTIMIZERS,
    )

    getHistoryCols, setHistoryCols = getter(historyCols), setter(historyCols)
    getAttentionLayers, setAttentionLayers = getter(attentionLayers), setter(attentionLayers)


class TowerSettings(DeepSettings):
    """The parameters of TwoTower."""

    hiddenLayers: Flexible[list[int], Sequence[int]] = param(
        [64, 32], "the sizes of the layers of each tower", check=LAYERS, type=list[int], option="hidden"
    )
    optimizer: Setting[str] = param(
        "adagrad", f"the optimizer of the embeddings: {', '.join(VECTOR_OPTIMIZERS)}", one_of=VECTOR_OPTIMIZERS
    )
    maxIter: Setting[int] = param(5, "the number of passes over the rows", at_least=1, option="epochs")
    loss: Setting[str] = param(
        "softmax",
        "softmax: rows are positive pairs, and the other items of a batch are negatives; logistic: labels are 0 and 1",
        one_of=("softmax", "logistic"),
    )
    temperature: Setting[float] = param(0.1, "the divisor of the cosine of the two towers' vectors", above=0)
    userCols: Flexible[list[str] | None, Sequence[str]] = param(
        None,
        "the key columns of the users' tower; all other key columns are those of the items' tower",
        type=list[str],
        option=None,
    )

    getLoss, setLoss = getter(loss), setter(loss)
    getTemperature, setTemperature = getter(temperature), setter(temperature)
    getUserCols, setUserCols = getter(userCols), setter(userCols)
