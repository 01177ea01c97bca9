"""Training of a PyTorch module: minibatches in the workers, optimizer steps on the servers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from ps2.algorithms.training.record import Record, StepReport, TrainingHistory, Words
from ps2.errors import DivergedError, InputError, PS2Error
from ps2.run.message import STOP, Message, Stop
from ps2.torch.columns import read_tensors
from ps2.torch.embedding import RemoteEmbedding
from ps2.torch.optimizer import RemoteOptimizer

# An upper limit of a training's clocks: the driver ends the training with STOP.
CLOCKS = 2**40


@dataclass(frozen=True)
class TorchOptions:
    """The options of a training.

    Attributes:
        inputs: the names of the input columns; the module gets one tensor for each.
        ragged: the names of inputs with arrays of any lengths.
        label: the name of the column of labels.
        batch: the maximum number of rows of a worker's minibatch.
        epochs: the number of passes over the rows.
        staleness: the number of clocks that a worker may be ahead of the slowest one.
        seed: the seed of the order of rows and of dropout, in [0, 2**63).
        threads: the number of torch's threads in each worker.
    """

    inputs: tuple[str, ...]
    ragged: tuple[str, ...]
    label: str
    batch: int
    epochs: int
    staleness: int
    seed: int
    threads: int

    @property
    def first_clock(self) -> int:
        """The first clock with a minibatch. In the clocks before it, the workers report their numbers of rows."""
        return self.staleness + 1


@dataclass(frozen=True)
class TrainedModule:
    """The result of a training.

    Attributes:
        module: the module with the trained parameters; its tables stay on the servers.
        width: w if the module's output has shape (rows, w); None if it has shape (rows,).
        history: the mean loss of each clock.
    """

    module: Any
    width: int | None
    history: TrainingHistory


def train(
    ps: Any, frame: Any, workers: int | None, program: ModuleProgram, on_step: Callable[[StepReport], None]
) -> TrainedModule:
    """Train a module on the servers of a context; raise DivergedError if the loss is not finite."""
    options, record = program.options, Record(on_step, Words("minibatch", "loss"))
    record.completed = "all epochs are done"
    driver = _Driver(options, record)
    record.start_timer()
    try:
        results = ps.run(
            frame,
            program,
            workers,
            options.staleness,
            read=program.read,
            onClock=driver.on_clock,
            seed=options.seed,
        )
        if program.optimizer is not None:
            program.optimizer.pull()
    finally:
        if program.optimizer is not None:
            with suppress(PS2Error):  # the context may be stopped
                program.optimizer.free()
    width, buffers = results[0]
    with torch.no_grad():
        for name, buffer in program.module.named_buffers():
            buffer.copy_(torch.from_numpy(buffers[name]))
    return TrainedModule(program.module, width, record.history())


@dataclass(frozen=True, eq=False)
class ModuleProgram:
    """The program of a worker; picklable.

    Attributes:
        optimizer: the optimizer of the module's dense parameters; None: the module has no dense parameters.
        loss: the user's ``lossFn``, which returns the mean loss of the rows.
    """

    module: Any
    optimizer: RemoteOptimizer | None
    loss: Callable[[Any, Any], Any]
    options: TorchOptions

    def read(self, worker: Any, batches: Iterator[pa.RecordBatch]) -> list[Any]:
        """Return a tensor for each input of a worker's rows, and then a tensor of the labels."""
        options = self.options
        return read_tensors(batches, (*options.inputs, options.label), options.ragged)

    def __call__(self, worker: Any, tensors: Sequence[Any]) -> tuple[int | None, dict[str, Any]]:
        """Train; return the width of the module's output, and the module's buffers by name."""
        options, rows = self.options, len(tensors[-1])
        torch.set_num_threads(options.threads)
        self.module.train()
        order, width, pulled_epoch = _Order(rows, options.seed, worker.rank), None, -1
        for clock in worker.clocks(CLOCKS):
            if clock < options.first_clock:
                if clock == 0:
                    worker.report(rows, merge="max")
                continue
            steps = worker.message["steps"]
            epoch, step = divmod(clock - options.first_clock, steps)
            if epoch < options.epochs:
                torch.manual_seed(int(worker.rng().integers(2**63)))
                # A single worker has the servers' parameters from its last step, unless the fleet rolled back after it.
                if self.optimizer is not None and (worker.workers > 1 or pulled_epoch != worker.epoch):
                    self.optimizer.pull()
                    pulled_epoch = worker.epoch
                row_numbers = order.minibatch(epoch, step, steps)
                loss, width = self._step([tensor[row_numbers] for tensor in tensors], worker.workers == 1)
                worker.report(loss)
        buffers = self.module.named_buffers() if worker.rank == 0 else ()
        return width, {name: buffer.detach().numpy() for name, buffer in buffers}

    def _step(self, tensors: Sequence[Any], pull: bool) -> tuple[Any, int | None]:
        """Take one step; return an array (sum of the rows' losses, number of rows), and the width of the output."""
        *inputs, labels = tensors
        if not len(labels):
            return np.zeros(2), None
        if self.optimizer is not None:
            self.optimizer.zero_grad()
        output = self.module(*inputs)
        width = output_width(output, len(labels))
        loss = self.loss(output, labels)
        if loss.dim():
            raise InputError(f"lossFn: expected the mean loss, a tensor without axes, got shape {tuple(loss.shape)}")
        if not math.isfinite(loss.item()):
            raise DivergedError(f"the loss of a minibatch is {loss.item()}: lower the learning rates")
        loss.backward()
        if self.optimizer is not None:
            self.optimizer.step(pull=pull)
        return np.array([loss.item() * len(labels), len(labels)]), width


def output_width(output: Any, rows: int) -> int | None:
    """Return w for an output of shape (rows, w), None for shape (rows,); raise InputError for another shape."""
    if not isinstance(output, torch.Tensor) or output.dim() not in (1, 2) or len(output) != rows:
        got = f"shape {tuple(output.shape)}" if isinstance(output, torch.Tensor) else type(output).__name__
        raise InputError(f"modelFn: expected a module that returns shape ({rows},) or ({rows}, width), got {got}")
    return None if output.dim() == 1 else output.shape[1]


def remote_embeddings(module: Any) -> list[tuple[str, RemoteEmbedding]]:
    """Return the name and the module of each remote embedding in a module."""
    return [(name, child) for name, child in module.named_modules() if isinstance(child, RemoteEmbedding)]


class _Order:
    """The random order in which a worker uses its rows. It is different in each epoch, and equal in all attempts."""

    def __init__(self, rows: int, seed: int, rank: int) -> None:
        self._rows, self._seed = rows, (seed, rank)
        self._epoch, self._order = -1, torch.empty(0, dtype=torch.int64)

    def minibatch(self, epoch: int, step: int, steps: int) -> Any:
        """Return the row numbers of a step's minibatch as an int64 tensor. An epoch has ``steps`` steps."""
        if epoch != self._epoch:
            rng = np.random.default_rng((*self._seed, epoch))
            self._epoch, self._order = epoch, torch.from_numpy(rng.permutation(self._rows))
        return self._order[self._rows * step // steps : self._rows * (step + 1) // steps]


class _Driver:
    """The driver's program: sets the number of steps of an epoch, records losses, and ends the training."""

    def __init__(self, options: TorchOptions, record: Record) -> None:
        self._options, self._record = options, record
        self._steps = 0

    def on_clock(self, clock: int, reports: list[Any]) -> Message | Stop | None:
        """Tell the workers the number of steps after clock 0; record the loss of each later clock; stop at the end."""
        options, record = self._options, self._record
        if clock == 0:
            self._steps = max(1, math.ceil(int(reports[0]) / options.batch))
            return Message({"steps": self._steps})
        number = clock - options.first_clock
        if number < 0:
            return None
        if number < self._steps * options.epochs:
            record.enter(number)
            losses, rows = reports[0].tolist()
            record.add(int(rows), 0)
            record.add_step(losses / rows)
        return STOP if number + 1 >= self._steps * options.epochs else None
