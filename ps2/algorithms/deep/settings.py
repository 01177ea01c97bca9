"""The parameters of deep models."""

from __future__ import annotations

from collections.abc import Sequence

from ps2.algorithms.frame.key_settings import ClassSettings, LearningSettings, VectorSettings
from ps2.algorithms.frame.settings import Flexible, Setting, getter, param, setter

OPTIMIZERS = ("ftrl+adagrad", "adagrad", "adam", "ftrl", "sgd")
# The check of the sizes of layers, and the text for its error.
LAYERS = (lambda sizes: all(size >= 1 for size in sizes), "sizes of at least 1")


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
    maxIter: Setting[int] = param(5, "the number of passes over the rows", at_least=1, option="epochs")
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


class TowerSettings(DeepSettings):
    """The parameters of TwoTower."""

    hiddenLayers: Flexible[list[int], Sequence[int]] = param(
        [64, 32], "the sizes of the layers of each tower", check=LAYERS, type=list[int], option="hidden"
    )
    optimizer: Setting[str] = param(
        "adagrad", "the optimizer of the embeddings: adagrad, adam, sgd", one_of=("adagrad", "adam", "sgd")
    )
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
