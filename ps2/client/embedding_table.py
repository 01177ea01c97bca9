"""Embedding tables: weights of keys, with their optimizer on the servers (Monolith, arXiv 2209.07663, section 2.1)."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ps2.array_types import Float32s, Int64s
from ps2.client import embedding_plans, storage, table_export
from ps2.client.arguments import as_values
from ps2.client.batch import in_batch, submit
from ps2.client.dcv import DCV
from ps2.client.embedding_reads import EmbeddingRead, PendingReads, RecentKeys
from ps2.client.embedding_settings import FORMAT, TableOptimizer, TableSettings, num_possible_keys
from ps2.client.handle import Handle
from ps2.client.managed_matrix import KeyStatus
from ps2.client.matrix import DCVMatrix
from ps2.client.table_export import ExportedModel
from ps2.errors import CheckpointMissingError, ConfigError, ShapeError, UsageError
from ps2.matrix.key_policy import Clock, InitialKind
from ps2.matrix.partition import Wire
from ps2.name_hints import hints_keywords
from ps2.number_checks import is_whole
from ps2.storage.export_writing import Export
from ps2.storage.files import read_json, remove_folder, resolve_url, write_json

OptimizerName = Literal["sgd", "adagrad", "adam", "ftrl", "ftrl+adagrad"]
SETTINGS = "table.json"


class EmbeddingTable:
    """A table of k weights for each key, with the state of their optimizer, on the servers.

    ``pull`` reads the weights of keys. ``push`` sends gradients, and the servers take the optimizer's step at these
    keys in the same request, exactly once. A key gets its block of memory, which holds its weights and the optimizer's
    state, with its first gradient (or later, with ``admitAfter``).

    A table works in the driver and, pickled in a closure, in every task, like a ``DCV``.

    Attributes:
        settings: the settings that all handles to the table share; ``existing`` takes them.
    """

    @hints_keywords
    def __init__(  # noqa: PLR0913 - most of them are keywords
        self,
        k: int,
        optimizer: OptimizerName = "adagrad",
        keys: int | Literal["hashed"] = "hashed",
        *,
        lr: float | None = None,
        eps: float | None = None,
        beta1: float | None = None,
        beta2: float | None = None,
        alpha: float | None = None,
        beta: float | None = None,
        l1: float | None = None,
        l2: float | None = None,
        decay: float | None = None,
        hashBits: int | None = None,
        zeroColumns: int = 0,
        init: InitialKind = "normal",
        initScale: float = 0.01,
        seed: int = 0,
        admitAfter: int = 1,
        expireAfterS: float | None = None,
        maxKeys: int | None = None,
        clock: Clock = "wall",
        wire: Wire | None = None,
        partitionsPerServer: int = 1,
        withCopy: bool = False,
        name: str | None = None,
    ) -> None:
        """Create a table on the fleet of the active PS2Context.

        Args:
            k: number of weights of a key.
            optimizer: "sgd", "adagrad", "adam" (each key has its own step number), "ftrl" (FTRL-Proximal), or
                "ftrl+adagrad" (FTRL-Proximal for the first ``zeroColumns`` weights of a key, Adagrad for the others).
            keys: "hashed" for int64 keys in [0, 2**63); or a number n, for keys in [0, n).
            lr: learning rate of "sgd" (0.05), "adagrad" (0.05) and "adam" (0.001).
            eps: the constant that "adagrad" and "adam" add to the denominator (1e-8).
            beta1, beta2: decay rates of "adam" (0.9, 0.999).
            alpha, beta: scale and offset of the learning rate of "ftrl" (0.05, 1.0).
            l1, l2: strengths of the penalties on the weights of pushed keys (0.0); gradients must not contain the
                penalties. With "ftrl+adagrad", they apply to the weights that take FTRL steps.
            decay: with "ftrl+adagrad", strength of the L2 penalty on the other weights (0.0).
            hashBits: number of bits that keys are hashed to; keys can collide. Only for comparisons with hashed models.
            zeroColumns: number of leading weights of a key whose initial value is 0, such as linear weights.
            init: initial values of the other weights: "normal" (standard deviation ``initScale``), "uniform" (on
                ``[-initScale, initScale)``) or "zeros". They depend only on the seed, the key and the row.
            admitAfter, expireAfterS, maxKeys, clock: the rules for when keys get and lose blocks; see ``DCV.sparse``.
                Until a key is admitted, its steps are dropped, and pulls return its initial weights.
            wire: "float16" or "bfloat16" halves the size of gradients on the network, and rounds them.
            partitionsPerServer: number of partitions on each server.
            withCopy: whether a key's block has room for a copy of its values (``storeCopy``), which doubles its memory.
            name: the name by which ``ps.vector(name)`` finds the table's matrix; a named table stays until ``free()``.

        Raises:
            ConfigError: an argument is invalid, or another vector has this name.
            LimitError: the servers' memory limit does not allow it.
            StoppedError: there is no PS2Context.
        """
        if not is_whole(k) or k < 1:
            raise ConfigError(f"k: expected a positive integer, got {k!r}")
        values = {"lr": lr, "eps": eps, "beta1": beta1, "beta2": beta2, "alpha": alpha, "beta": beta}
        values |= {"l1": l1, "l2": l2, "decay": decay}
        zeros = zeroColumns if is_whole(zeroColumns) else -1
        steps = TableOptimizer.of(optimizer, int(k), zeros, values)
        settings = TableSettings(steps, num_possible_keys(keys), hashBits, zeroColumns, wire)
        first = DCV.sparse(
            settings.matrix_dim,
            steps.block * (2 if withCopy else 1),
            layout="column",
            partitionsPerServer=partitionsPerServer,
            name=name,
            admitAfter=admitAfter,
            expireAfterS=expireAfterS,
            maxKeys=maxKeys,
            init=init,
            initScale=initScale,
            seed=seed,
            initBegin=settings.zero_columns,
            initEnd=settings.k,
            clock=clock,
        )
        self._initialize(first.matrix(), settings)

    def _initialize(self, matrix: DCVMatrix, settings: TableSettings) -> None:
        self._matrix = matrix
        self.settings = settings
        self._recent = RecentKeys()
        self._reads = PendingReads()

    @classmethod
    def existing(cls, matrix: DCVMatrix | int, settings: TableSettings) -> EmbeddingTable:
        """Return a handle to an existing table, such as one that another process created.

        Args:
            matrix: the table's ``matrix``, or its ``matrix.number``; with a number, the handle frees nothing.
            settings: the table's ``settings``.

        Raises:
            NotFoundError: there is no such matrix.
            ConfigError: the matrix does not have the form that the settings ask for.
        """
        table = cls.__new__(cls)
        handle = matrix if isinstance(matrix, DCVMatrix) else DCVMatrix.existing(matrix)
        block = settings.optimizer.block
        expected = block, settings.matrix_dim, np.dtype(np.float32)
        if (*handle.shape, handle.dtype) not in (expected, (2 * block, *expected[1:])):
            raise ConfigError(f"matrix: expected (rows, dim, dtype) {expected}, got {(*handle.shape, handle.dtype)}")
        table._initialize(handle, settings)
        return table

    @property
    def k(self) -> int:
        """Number of weights of a key."""
        return self.settings.k

    @property
    def withCopy(self) -> bool:
        """Whether the blocks have room for a copy; see ``storeCopy``."""
        return self._matrix.rows > self.settings.optimizer.block

    @property
    def optimizer(self) -> str:
        return self.settings.optimizer.name

    @property
    def hyperparameters(self) -> dict[str, float]:
        """The optimizer's hyperparameters, by name."""
        return self.settings.optimizer.hyperparameters

    def set(self, **hyperparameters: float) -> EmbeddingTable:
        """Change hyperparameters for later pushes of this handle, as in ``table.set(lr=0.01)``.

        Raises:
            ConfigError: the optimizer has no such hyperparameter, or a value is out of range.
        """
        self.settings = replace(self.settings, optimizer=self.settings.optimizer.changed(hyperparameters))
        return self

    @property
    def matrix(self) -> DCVMatrix:
        """The table's matrix, with layout "column": one block is a key's k weights and the state of its optimizer."""
        return self._matrix

    def __repr__(self) -> str:
        return f"EmbeddingTable(k={self.k}, {self.settings.optimizer.name!r}, matrix={self._matrix.number:x})"

    # -- reading ---------------------------------------------------------------------------------------------------

    def pull(self, keys: Any) -> Any:
        """Read weights: float32 of shape ``keys.shape + (k,)``. Each distinct key is sent once.

        If ``prefetch`` was called with the same keys, return its answer; a later pull of these keys reads again.

        Args:
            keys: integers of any shape, duplicates allowed.

        Raises:
            DTypeError, OutOfRangeError: the keys are not integers, or one is not in [0, dim).
        """
        return self._pull(self.settings.checked_keys(keys), are_distinct=False)

    def pullDistinct(self, keys: Int64s) -> Any:
        """Read weights of distinct keys; faster than ``pull``, which searches for duplicates.

        Args:
            keys: int64 of shape (n,); ascending keys are checked faster.

        Returns:
            float32 of shape (n, k).

        Raises:
            UsageError: a key occurs twice.
            DTypeError, OutOfRangeError: see ``pull``.
            ShapeError: ``keys`` is not one-dimensional.
        """
        return self._pull(self._distinct(keys), are_distinct=True)

    def pullBlocks(self, keys: Int64s) -> Any:
        """Read weights and their optimizer's state, float32 of shape (n, block), of keys as in ``pullDistinct``."""
        grouped = self._recent.group(self._matrix, self.settings, self._distinct(keys), are_distinct=True)
        return self._submit(grouped.pull(self.settings.optimizer.block))

    def prefetch(self, keys: Any) -> EmbeddingTable:
        """Begin to read the weights of keys in the background. The next pull of the same keys returns these weights.

        The servers read the weights at about the time of this call, so they do not contain later pushes, such as the
        previous batch's step. A program that prefetches one batch ahead learns from weights that are one step old.

        Args:
            keys: integers of any shape, duplicates allowed. At most 8 prefetches are stored; the oldest are dropped.

        Raises:
            DTypeError, OutOfRangeError: see ``pull``.
        """
        checked = self.settings.checked_keys(keys).copy()
        self._reads.begin(checked, self._read(checked, are_distinct=False))
        return self

    def keysCount(self) -> int:
        """Return the number of keys that have a block."""
        return int(self._submit(embedding_plans.count(self._matrix._target())))

    # -- writing ---------------------------------------------------------------------------------------------------

    def push(self, keys: Any, gradients: Any, wait: bool = True) -> EmbeddingTable:
        """Take one optimizer step at each distinct key, on the servers, with the sum of the key's gradients.

        Args:
            keys: integers of any shape, duplicates allowed.
            gradients: float32 of shape ``keys.shape + (k,)``.
            wait: False returns at once, as ``DCVMatrix.add`` does.

        Raises:
            DTypeError, ShapeError, OutOfRangeError: keys or gradients do not fit the table; or the sum of a key's
                gradients is NaN or infinite, or above 1e15 if the optimizer sums squares. Nothing has been sent.
            LimitError: a partition has no memory for the new keys (``maxKeys``, or the servers' memory limit); nothing
                is applied in that partition.
        """
        checked = self.settings.checked_keys(keys)
        values = as_values(gradients, np.dtype(np.float32), (*checked.shape, self.k), "gradients")
        return self._step(checked, values.reshape(-1, self.k), wait, are_distinct=False)

    def pushDistinct(self, keys: Int64s, gradients: Float32s, wait: bool = True) -> EmbeddingTable:
        """Take one optimizer step at each of some distinct keys; faster than ``push``, which searches for duplicates.

        Args:
            keys: int64 of shape (n,); ascending keys are checked faster.
            gradients: float32 of shape (n, k). With ``wait=False`` the caller must not change keys and gradients
                afterwards.
            wait: see ``push``.

        Raises:
            UsageError: a key occurs twice.
            ShapeError, DTypeError, OutOfRangeError, LimitError: see ``push``.
        """
        checked = self._distinct(keys)
        values = as_values(gradients, np.dtype(np.float32), (checked.size, self.k), "gradients")
        return self._step(checked, values, wait, are_distinct=True)

    # -- managed keys (docs/keys.md) -------------------------------------------------------------------------------

    def advance(self, nowS: float, touched: bool = False) -> EmbeddingTable:
        """Set the time of the table, in seconds, with ``clock="event"``, as ``DCV.advance`` does."""
        self._matrix.advance(nowS, touched)
        return self

    def expire(self, olderThanS: float | None = None) -> int:
        """Remove the keys whose last push is at least ``olderThanS`` seconds ago; return how many were removed.

        Args:
            olderThanS: seconds; default: the table's ``expireAfterS``.
        """
        return self._matrix.expire(olderThanS)

    def evict(self, keep: int) -> int:
        """Remove the least recently pushed keys until about ``keep`` keys are left; return how many were removed."""
        return self._matrix.evict(keep)

    def remove(self, keys: Any) -> int:
        """Remove keys of any shape, with the state of their optimizer; return how many of them had a block."""
        return self._matrix.remove(self.settings.columns(self.settings.checked_keys(keys).reshape(-1)))

    def keyStatus(self) -> KeyStatus:
        """Return the counts of active, waiting, admitted, expired and evicted keys, and the table's time."""
        return self._matrix.keyStatus()

    def storeCopy(self) -> EmbeddingTable:
        """Copy all weights and the optimizer's state, over an earlier copy; UsageError: there is no ``withCopy``."""
        return self._copy(0, self.settings.optimizer.block)

    def restoreCopy(self) -> EmbeddingTable:
        """Set all keys to the values that ``storeCopy`` copied; newer keys get zeros. Raises like it."""
        return self._copy(self.settings.optimizer.block, 0)

    def _copy(self, source: int, target: int) -> EmbeddingTable:
        if not self.withCopy:
            raise UsageError(f"{self!r} has no room for a copy: make it with withCopy=True")
        self._matrix.apply("embedding_copy", source=source, target=target, count=self.settings.optimizer.block)
        return self

    # -- the table as a whole --------------------------------------------------------------------------------------

    def save(self, url: str) -> None:
        """Write the table, with the state of its optimizer, to a folder; ``EmbeddingTable.load`` reads it.

        An earlier save in this folder stays until the new save is complete.

        Args:
            url: a path or any fsspec URL that the servers and this process can write to; it must be the same folder
                for all of them.

        Raises:
            RecoveryError: the save cannot be written.
        """
        fs, root = resolve_url(url)
        earlier_save = read_json(fs, f"{root}/{SETTINGS}", FORMAT)
        rows = f"rows-{uuid.uuid4().hex[:12]}"
        self._matrix.save(f"{str(url).rstrip('/')}/{rows}")
        write_json(fs, f"{root}/{SETTINGS}", {**self.settings.to_json(), "rows": rows})
        if earlier_save is not None:
            with suppress(OSError, ValueError):
                remove_folder(fs, f"{root}/{earlier_save['rows']}")

    @classmethod
    def load(cls, url: str, name: str | None = None) -> EmbeddingTable:
        """Create a table from what ``save`` wrote, on a fleet of any size.

        Args:
            url: the folder, which the servers and this process can read.
            name: name of the new table, as for the constructor; None: no name.

        Raises:
            CheckpointMissingError: there is no table at this path.
            CheckpointCorruptError: the files are not as they were written.
            LimitError: the servers' memory limit does not allow it.
        """
        fs, root = resolve_url(url)
        content = read_json(fs, f"{root}/{SETTINGS}", FORMAT)
        if content is None:
            raise CheckpointMissingError(f"{url}: there is no embedding table ({SETTINGS})")
        settings = TableSettings.from_json(content)
        rows = f"{str(url).rstrip('/')}/{content.get('rows')}"
        return cls.existing(DCVMatrix.of(storage.load_rows(Handle, rows, name)), settings)

    def export(
        self,
        path: str,
        since: Export | int | str | None = None,
        *,
        kind: str = "table",
        config: Mapping[str, Any] | None = None,
        hasher: Mapping[str, Any] | None = None,
        dense: Mapping[str, npt.NDArray[Any]] | None = None,
    ) -> Export:
        """Write the weights, without the optimizer's state, to a folder that ``ps2.serving.Scorer`` reads anywhere.

        Training may continue during the export; the weights of different keys are then read at different times.

        Args:
            path: a folder, or any fsspec URL of one, that this process can write to.
            since: result of an earlier call, its number, or "last": write only the changes since that export. If the
                servers no longer know the changes, all keys are written, and the result's ``reason`` says why.
            kind: name of the function that scores rows with these weights (``ps2.serving.loading``); "table": none.
            config: other settings of that function.
            hasher: the settings of the hasher that makes keys of columns.
            dense: the arrays that the function needs besides the table, by name.

        Raises:
            UsageError: the folder has no such export, or holds exports of another table; or the table has ``hashBits``.
            DivergedError: a weight is not finite.
            RecoveryError: the files cannot be written; the previous export stays.
        """
        if self.settings.hash_bits is not None:
            raise UsageError("export: a table with hashBits is for comparisons, and has no exports")
        model = ExportedModel(kind, config or {}, hasher, dense or {})
        return table_export.export(self._matrix, self.k, self.pullDistinct, path, since, model)

    def free(self) -> None:
        """Free the table: every handle to it fails from now on."""
        self._reads.close()
        self._matrix.free()

    def flush(self) -> EmbeddingTable:
        """Wait until all ``wait=False`` changes of this process are applied; raise the first error among them."""
        self._matrix.flush()
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {"matrix": self._matrix, "settings": self.settings}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._initialize(state["matrix"], state["settings"])

    def _pull(self, keys: Int64s, are_distinct: bool) -> Any:
        read = self._reads.take(keys)
        return self._read(keys, are_distinct).run() if read is None else read.result()

    def _read(self, keys: Int64s, are_distinct: bool) -> EmbeddingRead:
        return EmbeddingRead(self._matrix, self.settings, self._recent, keys, are_distinct)

    def _distinct(self, keys: Int64s) -> Int64s:
        checked = self.settings.checked_keys(keys)
        if checked.ndim != 1:
            raise ShapeError(f"keys: expected one dimension, got shape {checked.shape}; pull and push take any shape")
        return checked

    def _step(self, keys: Int64s, gradients: Float32s, wait: bool, are_distinct: bool) -> EmbeddingTable:
        if not keys.size:
            return self
        grouped = self._recent.group(self._matrix, self.settings, keys, are_distinct)
        plan = grouped.step(self.settings, gradients)
        if wait or in_batch():
            self._submit(plan)
        else:
            self._matrix._session.dispatch.run_later(plan)
        return self

    def _submit(self, plan: Any) -> Any:
        return submit(self._matrix._session, plan)
