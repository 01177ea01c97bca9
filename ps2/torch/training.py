"""Training of a PyTorch module: minibatches in the workers, optimizer steps on the servers."""

from __future__ import annotations

import math
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from ps2.algorithms.training.record import Record, StepReport, TrainingHistory, Words, steps_without_progress
from ps2.client.matrix import owning
from ps2.errors import DivergedError, InputError, PS2Error
from ps2.run.message import STOP, Message, Stop
from ps2.torch.columns import read_tensors
from ps2.torch.device import batch_to, choose_device
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
        held_out: the name of the column that is 1 for rows to hold out, 0 for others, -1 for null; "": there is none.
        patience, tolerance: the estimator's ``patience`` and ``validationTol``.
        device: the estimator's ``device``.
    """

    inputs: tuple[str, ...]
    ragged: tuple[str, ...]
    label: str
    batch: int
    epochs: int
    staleness: int
    seed: int
    threads: int
    held_out: str = ""
    patience: int = 0
    tolerance: float = 0.0
    device: str = "cpu"

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
    driver = _Driver(program, record)
    record.start_timer()
    try:
        with owning(child.table.matrix for _, child in remote_embeddings(program.module)):
            results = ps.run(
                frame,
                program,
                workers,
                options.staleness,
                read=program.read,
                onClock=driver.on_clock,
                seed=options.seed,
            )
        best_buffers = driver.restore_best()
        if program.optimizer is not None:
            program.optimizer.pull()
    finally:
        if program.optimizer is not None:
            with suppress(PS2Error):  # the context may be stopped
                program.optimizer.free()
    width, buffers = results[0]
    buffers = buffers if best_buffers is None else best_buffers
    with torch.no_grad():
        for name, buffer in program.module.named_buffers():
            buffer.copy_(torch.from_numpy(buffers[name]).view_as(buffer))
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
        """Return a tensor for each input of a worker's rows, then one of the labels, and one of ``held_out`` if set."""
        options = self.options
        others = filter(None, (options.label, options.held_out))
        tensors = read_tensors(batches, (*options.inputs, *others), options.ragged)
        if options.held_out and (tensors[-1] < 0).any():
            row = int((tensors[-1] < 0).nonzero()[0])
            raise InputError(f"column {options.held_out!r}, row {row}: expected true or false, got null")
        return tensors

    def __call__(self, worker: Any, tensors: Sequence[Any]) -> tuple[int | None, dict[str, Any]]:
        """Train; return the width of the module's output, and the first worker's buffers by name.

        If rows are held out, the last clock of each epoch computes their loss.
        """
        options = self.options
        is_held_out = torch.zeros(len(tensors[-1]), dtype=torch.bool)
        if options.held_out:
            *tensors, marks = tensors
            is_held_out = marks > 0
        training, held_out = torch.nonzero(~is_held_out).flatten(), torch.nonzero(is_held_out).flatten()
        torch.set_num_threads(options.threads)
        self.module.train()
        order, width, pulled_epoch, device = _Order(training, options.seed, worker.rank), None, -1, None
        host = socket.gethostname()
        for clock in worker.clocks(CLOCKS):
            if clock < options.first_clock:
                if clock == 0:
                    worker.report(len(training), merge="max")
                    worker.report([host], merge="concat")
                continue
            steps = worker.message["steps"]
            if device is None:
                device = choose_device(options.device, worker.message["hosts"][: worker.rank].count(host))
                for part in (self.module, self.loss):
                    if isinstance(part, torch.nn.Module):
                        part.to(device)
            epoch, step = divmod(clock - options.first_clock, steps + bool(options.held_out))
            if epoch < options.epochs:
                torch.manual_seed(int(worker.rng().integers(2**63)))
                # A single worker has the servers' parameters from its last step, unless the fleet rolled back after it.
                if self.optimizer is not None and (worker.workers > 1 or pulled_epoch != worker.epoch):
                    self.optimizer.pull()
                    pulled_epoch = worker.epoch
                if step == steps:
                    worker.report(self._held_out_loss(tensors, held_out, device))
                    if options.patience and (buffers := self._buffers(worker.rank)):
                        worker.report(buffers, merge="concat")  # of one worker, so they stay as they are
                    continue
                row_numbers = order.minibatch(epoch, step, steps)
                prefetch, following = None, epoch * steps + step + 1
                if options.staleness and following < options.epochs * steps:
                    prefetch = partial(
                        self._prefetch, tensors, order.minibatch(following // steps, following % steps, steps)
                    )
                batch = batch_to(device, [tensor[row_numbers] for tensor in tensors])
                loss, width = self._step(batch, worker.workers == 1, prefetch)
                worker.report(loss)
        return width, self._buffers(worker.rank)

    def _buffers(self, rank: int) -> dict[str, Any]:
        """Return copies of the buffers of the first worker by name; those of others are not used."""
        buffers = self.module.named_buffers() if rank == 0 else ()
        return {name: buffer.detach().cpu().numpy().copy() for name, buffer in buffers}

    def _held_out_loss(self, tensors: Sequence[Any], rows: Any, device: Any) -> Any:
        """Return an array (sum of the losses of these rows, their number)."""
        total = 0.0
        self.module.eval()
        with torch.no_grad():
            for batch in rows.split(self.options.batch) if len(rows) else ():
                *inputs, labels = batch_to(device, [tensor[batch] for tensor in tensors])
                total += self.loss(self.module(*inputs), labels).item() * len(batch)
        self.module.train()
        return np.array([total, len(rows)])

    def _prefetch(self, tensors: Sequence[Any], row_numbers: Any, inputs: Sequence[Any]) -> None:
        """Begin to pull the embeddings of the next minibatch, which has some rows of ``tensors``.

        Args:
            inputs: the inputs of the forward pass that has ended. Of an embedding that it used once, with one of them,
                the keys of the next pass are known.
        """
        for _, child in remote_embeddings(self.module):
            keys = child.recent_keys or []
            for used, tensor in zip(inputs, tensors, strict=False):
                if len(row_numbers) and len(keys) == 1 and keys[0] is used:
                    child.prefetch(tensor[row_numbers])

    def _step(
        self, tensors: Sequence[Any], pull: bool, prefetch: Callable[[Sequence[Any]], None] | None
    ) -> tuple[Any, int | None]:
        """Take one step; return an array (sum of the rows' losses, number of rows), and the width of the output.

        ``prefetch`` is called after the forward pass, with its inputs.
        """
        *inputs, labels = tensors
        if not len(labels):
            return np.zeros(2), None
        if self.optimizer is not None:
            self.optimizer.zero_grad()
        for _, child in remote_embeddings(self.module):
            child.recent_keys = [] if prefetch else None
        output = self.module(*inputs)
        if prefetch:
            prefetch(inputs)
        width = output_width(output, len(labels))
        loss = self.loss(output, labels)
        if loss.dim():
            raise InputError(f"lossFn: expected the mean loss, a tensor without axes, got shape {tuple(loss.shape)}")
        if not math.isfinite(value := loss.item()):
            raise DivergedError(f"the loss of a minibatch is {value}: lower the learning rates")
        loss.backward()
        if self.optimizer is not None:
            self.optimizer.step(pull=pull)
        return np.array([value * len(labels), len(labels)]), width


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

    def __init__(self, rows: Any, seed: int, rank: int) -> None:
        self._rows, self._seed = rows, (seed, rank)
        self._epoch, self._order = -1, torch.empty(0, dtype=torch.int64)

    def minibatch(self, epoch: int, step: int, steps: int) -> Any:
        """Return the row numbers of a step's minibatch as an int64 tensor. An epoch has ``steps`` steps."""
        if epoch != self._epoch:
            rng = np.random.default_rng((*self._seed, epoch))
            self._epoch, self._order = epoch, self._rows[torch.from_numpy(rng.permutation(len(self._rows)))]
        return self._order[len(self._rows) * step // steps : len(self._rows) * (step + 1) // steps]


class _Driver:
    """The driver's program: sets the number of steps of an epoch, records losses, and ends the training.

    With ``patience``, it keeps the model of the epoch whose loss of the held-out rows is the smallest so far.
    """

    def __init__(self, program: ModuleProgram, record: Record) -> None:
        self._options, self._record, self._optimizer = program.options, record, program.optimizer
        self._tables = {child.table.matrix.number: child.table for _, child in remote_embeddings(program.module)}
        self._buffers: dict[int, dict[str, Any]] = {}  # of the module after an epoch that was the best so far
        self._steps = 0

    def on_clock(self, clock: int, reports: list[Any]) -> Message | Stop | None:
        """Tell the workers the number of steps after clock 0; record the loss of each later clock; stop at the end."""
        options, record = self._options, self._record
        if clock == 0:
            if not reports[0]:
                raise InputError(f"column {options.held_out!r}: expected rows to train on, but all are held out")
            self._steps = math.ceil(int(reports[0]) / options.batch)
            return Message({"steps": self._steps, "hosts": reports[1]})
        number, clocks = clock - options.first_clock, self._steps + bool(options.held_out)
        if number < 0:
            return None
        is_over = number + 1 >= clocks * options.epochs
        if number < clocks * options.epochs:
            record.enter(number)
            losses, rows = reports[0].tolist()
            step = number % clocks
            if step == self._steps:
                record.validation.append(losses / rows if rows else math.nan)
                is_over |= self._keep_best(reports[1] if len(reports) > 1 else {})
            else:
                if record.validation and step + 1 < self._steps:
                    record.validation.append(record.validation[-1])  # the last known value, for each minibatch
                record.add(int(rows), 0)
                record.add_step(losses / rows)
        return STOP if is_over else None

    @property
    def _losses(self) -> list[float]:
        """The loss of the held-out rows after each epoch."""
        return self._record.validation[:: self._steps] if self._steps else []

    def _keep_best(self, buffers: dict[str, Any]) -> bool:
        """Keep the model of the last epoch, with these buffers, if it is the best; return whether the training ends."""
        options, losses = self._options, self._losses
        if not options.patience or math.isnan(losses[-1]):
            return False
        if best_epoch(losses) == len(losses) - 1:
            for table in self._tables.values():
                table.storeCopy()
            if self._optimizer is not None:
                self._optimizer.storeCopy()
            self._buffers[len(losses) - 1] = buffers
        if steps_without_progress(losses, options.tolerance) < options.patience:
            return False
        self._record.reason = f"no progress on the held-out rows for {options.patience} epochs"
        return True

    def restore_best(self) -> dict[str, Any] | None:
        """Set parameters and tables to those of the best epoch; return its buffers. None: the model is the last one."""
        losses, record = self._losses, self._record
        if not self._options.patience or not losses or best_epoch(losses) == len(losses) - 1:
            return None
        for table in self._tables.values():
            table.restoreCopy()
        if self._optimizer is not None:
            self._optimizer.restoreCopy()
        epoch = best_epoch(losses)
        record.best = (epoch + 1) * self._steps
        record.reason = f"{record.reason or record.completed}; the model is that of epoch {epoch + 1}"
        return self._buffers[epoch]


def best_epoch(losses: Sequence[float]) -> int:
    """Return the epoch, from 0, with the smallest loss; the last if none is known."""
    known = [(loss, epoch) for epoch, loss in enumerate(losses) if not math.isnan(loss)]
    return min(known)[1] if known else len(losses) - 1
