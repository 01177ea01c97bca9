"""The parameters of ``TorchEstimator``, without PyTorch."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ps2.algorithms.frame.settings import Flexible, Setting, getter, param, setter
from ps2.algorithms.frame.shared_settings import FleetSettings, HeldOutSettings

# For each optimizer: its server operation, the names of its state vectors, and the names of its scalars except lr.
STEPS = {
    "sgd": ("sgd_step", (), ()),
    "momentum": ("momentum_step", ("velocity",), ("momentum",)),
    "adagrad": ("adagrad_step", ("square",), ("eps",)),
    "adam": ("adam_step", ("velocity", "square", "count"), ("beta1", "beta2", "eps")),
}


DEVICES = re.compile(r"auto|cpu|cuda(:\d+)?")


class TorchSettings(FleetSettings, HeldOutSettings):
    """The parameters of ``TorchEstimator`` and its model."""

    inputCols: Flexible[list[str] | None, Sequence[str]] = param(
        None, "the columns of the module's inputs", type=list[str], in_model=True
    )
    labelCol: Setting[str] = param("label", "the column of the labels")
    predictionCol: Setting[str] = param("prediction", "the column of the predictions", in_model=True)
    raggedCols: Flexible[list[str], Sequence[str]] = param(
        [],
        "the inputCols with arrays of any lengths: the module gets Bags, which RemoteEmbedding takes",
        type=list[str],
    )
    batchSize: Setting[int] = param(1024, "the maximum number of rows of a worker's minibatch", at_least=1)
    epochs: Setting[int] = param(1, "the number of passes over the rows", at_least=1)
    staleness: Setting[int] = param(
        0, "the number of minibatches that a worker may be ahead of the slowest one", at_least=0
    )
    optimizer: Setting[str] = param(
        "adam", f"the update rule of the dense parameters: {', '.join(STEPS)}", one_of=STEPS
    )
    device: Setting[str] = param(
        "auto",
        "where the module computes: cpu, cuda (the workers of a host share its GPUs), cuda:N, or auto: on a GPU if a "
        "worker has one",
        check=(lambda name: DEVICES.fullmatch(name) is not None, "'auto', 'cpu', 'cuda' or 'cuda:N'"),
        in_model=True,
    )
    lr: Setting[float] = param(1e-3, "the learning rate of the dense parameters", above=0)
    seed: Setting[int] = param(0, "the seed of the order of rows", bits=64)

    getInputCols, setInputCols = getter(inputCols), setter(inputCols)
    getLabelCol, setLabelCol = getter(labelCol), setter(labelCol)
    getPredictionCol, setPredictionCol = getter(predictionCol), setter(predictionCol)
    getRaggedCols, setRaggedCols = getter(raggedCols), setter(raggedCols)
    getBatchSize, setBatchSize = getter(batchSize), setter(batchSize)
    getEpochs, setEpochs = getter(epochs), setter(epochs)
    getStaleness, setStaleness = getter(staleness), setter(staleness)
    getOptimizer, setOptimizer = getter(optimizer), setter(optimizer)
    getDevice, setDevice = getter(device), setter(device)
    getLr, setLr = getter(lr), setter(lr)
    getSeed, setSeed = getter(seed), setter(seed)
