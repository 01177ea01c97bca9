"""``RemoteEmbedding``: a PyTorch module for embeddings in a table on the servers."""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np
import torch
from torch.nn import functional

from ps2.array_types import Int64s
from ps2.client.embedding_table import EmbeddingTable
from ps2.errors import ConfigError, DTypeError, ShapeError, UsageError
from ps2.ops.distinct import number_distinct, sum_rows
from ps2.ops.guards import readable
from ps2.ops.table import Array
from ps2.torch.bag_kernels import add_bag_gradients
from ps2.torch.columns import Bags
from ps2.torch.device import copy_in, copy_out, host_keys, is_apart

Mode = Literal["none", "sum", "mean"]


class RemoteEmbedding(torch.nn.Module):
    """``nn.Embedding`` and ``nn.EmbeddingBag`` with an ``EmbeddingTable``, which is on the servers with its optimizer.

    ``forward`` pulls each distinct key of a batch once. ``backward`` sums the gradients of each key and pushes them,
    and the servers take the optimizer's step in the same request. The module has no parameters: neither
    ``parameters()`` nor ``state_dict()`` contains the table; ``table.save`` saves it.

    Example::

        table = EmbeddingTable(32, optimizer="adagrad", lr=0.05)
        bag = RemoteEmbedding(table, mode="sum")
        vectors = bag(keys)  # keys: int64, shape (rows, keys per row); vectors: float32, shape (rows, 32)
        loss_fn(vectors, y).backward()

    Each call of the module takes one step in the backward pass: a module that is called twice before ``backward`` takes
    two steps, each with the gradients of one call. Copies of a module (``copy.deepcopy``, pickles in tasks) share the
    table.

    The vectors are on the device that ``module.to(device)`` sets, at first the CPU. On a GPU, keys should stay on the
    CPU: the servers need them. One copy brings the vectors of the distinct keys and the keys' indices to the GPU, and
    one copy takes the gradients back.

    Attributes:
        recent_keys: a list to which ``forward`` appends its argument ``keys``; None: it does not.
    """

    def __init__(self, table: EmbeddingTable, mode: Mode = "none", *, wait: bool = True) -> None:
        """Wrap a table.

        Args:
            table: the table; its ``k`` is the size of the vectors.
            mode: "none" returns a vector for each key; "sum" and "mean" return a vector for each bag of keys.
            wait: False lets ``backward`` return before the servers have applied the gradients. The next call that
                waits, such as ``flush`` or a pull of any vector or table, waits for them and raises their errors.

        Raises:
            DTypeError: ``table`` is not an EmbeddingTable.
            ConfigError: ``mode`` is none of these modes.
        """
        super().__init__()
        if not isinstance(table, EmbeddingTable):
            raise DTypeError(f"table: expected an EmbeddingTable, got {type(table).__name__}")
        if mode not in get_args(Mode):
            raise ConfigError(f"mode: expected one of {', '.join(get_args(Mode))}, got {mode!r}")
        self.table = table
        self.mode = mode
        self.wait = wait
        self.recent_keys: list[Any] | None = None
        self._prefetched: _Batch | None = None
        # An empty tensor on the device of the vectors.
        self.register_buffer("_device", torch.empty(0), persistent=False)

    def forward(self, keys: Any, offsets: Any = None, per_sample_weights: Any = None) -> Any:
        """Return vectors of keys, or of bags of keys.

        Args:
            keys: int64 tensor of non-negative keys, or ``Bags`` of keys. Mode "none" takes any shape; the other modes
                take (bags, keys per bag), or (keys,) with offsets.
            offsets: int64 of shape (bags,): the index in ``keys`` at which each bag begins, as in ``nn.EmbeddingBag``.
                Bags may be empty.
            per_sample_weights: the weights in the sum, float32 of the shape of keys, or ``Bags``; only for mode "sum".

        Returns:
            float32 of shape ``keys.shape + (k,)``, or (bags, k).

        Raises:
            DTypeError, ShapeError, OutOfRangeError, UsageError: an argument is invalid. The backward pass raises
                OutOfRangeError if a gradient is not finite, and pushes nothing.
        """
        if self.recent_keys is not None:
            self.recent_keys.append(keys)
        if isinstance(keys, Bags):
            if offsets is not None:
                raise UsageError("offsets: expected None, because keys are Bags, which have offsets")
            keys, offsets = keys.values, keys.offsets
        if isinstance(per_sample_weights, Bags):
            per_sample_weights = per_sample_weights.values
        self._check(keys, offsets, per_sample_weights)
        batch = self._batch(host_keys(keys))
        requires_grad = torch.empty(0, requires_grad=torch.is_grad_enabled())
        device = self._buffers["_device"].device
        if per_sample_weights is None and not is_apart(device):
            return _Lookup.apply(requires_grad, self, batch, self.mode, offsets)
        # PyTorch computes on the device with the vectors of the distinct keys, and computes their gradients.
        batch.offsets, batch.weights = offsets, per_sample_weights
        rows = _Lookup.apply(requires_grad, self, batch, None, None)
        if self.mode == "none":
            return functional.embedding(batch.inverse, rows)
        weights = None if batch.weights is None else batch.weights.to(device)  # which can require a gradient
        return functional.embedding_bag(batch.inverse, rows, batch.offsets, mode=self.mode, per_sample_weights=weights)

    def prefetch(self, keys: Any) -> None:
        """Begin to pull the keys of the next batch; ``forward`` with equal keys uses the answer.

        The answer may not contain steps that are taken between the two calls.

        Args:
            keys: the keys for ``forward``.
        """
        keys = keys.values if isinstance(keys, Bags) else keys
        self._check(keys, None, None, is_prefetch=True)
        self._prefetched = _Batch(host_keys(keys).clone())
        self.table.prefetch(self._prefetched.distinct)

    def flush(self) -> None:
        """Wait until all gradients of ``wait=False`` are applied; raise the first error among them."""
        self.table.matrix.flush()

    def extra_repr(self) -> str:
        return f"{self.table!r}, mode={self.mode!r}"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_prefetched": None, "recent_keys": None}

    def _batch(self, keys: Any) -> _Batch:
        prefetched, self._prefetched = self._prefetched, None
        return prefetched if prefetched is not None and torch.equal(prefetched.keys, keys) else _Batch(keys)

    def _push(self, distinct: Int64s, gradients: Array) -> None:
        self.table.pushDistinct(distinct, gradients, wait=self.wait)

    def _check(self, keys: Any, offsets: Any, weights: Any, is_prefetch: bool = False) -> None:
        if not isinstance(keys, torch.Tensor) or keys.dtype != torch.int64:
            got = keys.dtype if isinstance(keys, torch.Tensor) else type(keys).__name__
            raise DTypeError(f"keys: expected a tensor of int64, got {got}")
        if is_prefetch:
            return
        if self.mode == "none" and offsets is not None:
            raise UsageError("offsets: mode 'none' has no bags; use 'sum' or 'mean'")
        if self.mode != "none" and keys.dim() != (2 if offsets is None else 1):
            shape = "(bags, keys per bag), or one dimension with offsets"
            raise ShapeError(f"keys: mode {self.mode!r} takes shape {shape}, got shape {tuple(keys.shape)}")
        if weights is not None and self.mode != "sum":
            raise UsageError(f"per_sample_weights: expected mode 'sum', got {self.mode!r}")


class _Batch:
    """The keys of one batch.

    Attributes:
        distinct: the u distinct keys, int64 of shape (u,), in the order of their first occurrence.
        inverse: the index of each key in ``distinct``, int64 tensor of the keys' shape.
        offsets, weights: what ``forward`` has got, for ``vectors_on`` to move; None: nothing.
    """

    def __init__(self, keys: Any) -> None:
        self.keys = keys
        self.distinct, inverse = number_distinct(keys.reshape(-1).numpy())
        self.inverse = torch.from_numpy(inverse).view(keys.shape)
        self.offsets: Any = None
        self.weights: Any = None

    def vectors_on(self, device: Any, vectors: Array) -> Any:
        """Return the vectors on a device; ``inverse``, ``offsets`` and ``weights`` go there in the same copy."""
        tensors = {"inverse": self.inverse, "offsets": self.offsets, "weights": self.weights}
        moving = {
            name: tensor
            for name, tensor in tensors.items()
            if tensor is not None and tensor.device.type == "cpu" and not tensor.requires_grad
        }
        rows, *moved = copy_in([vectors, *(tensor.numpy() for tensor in moving.values())], device)
        for name, tensor in zip(moving, moved, strict=True):
            setattr(self, name, tensor)
        return rows

    def sum_gradients(self, gradients: Array, mode: Mode, offsets: Any) -> Array:
        """Return the summed gradient of each distinct key: float32 of shape (u, k).

        ``gradients``: shape ``keys.shape + (k,)`` for mode "none", else (bags, k).
        """
        gradients, inverse = readable(gradients), readable(self.inverse.reshape(-1).numpy())
        k = gradients.shape[-1]
        if mode == "none":
            return sum_rows(gradients.reshape(-1, k), inverse, len(self.distinct))
        if offsets is None:
            begins = np.arange(len(gradients) + 1, dtype=np.int64) * self.inverse.shape[1]
        else:
            begins = np.append(offsets.numpy().astype(np.int64), inverse.size)
        sums = np.zeros((len(self.distinct), k), np.float32)
        add_bag_gradients(readable(begins[:-1]), readable(begins[1:]), gradients, inverse, mode == "mean", sums)
        return sums


class _Lookup(torch.autograd.Function):
    """The autograd function: ``forward`` pulls the vectors of the distinct keys, ``backward`` pushes gradients."""

    @staticmethod
    def forward(
        ctx: Any, _requires_grad: Any, module: RemoteEmbedding, batch: _Batch, mode: Mode | None, offsets: Any
    ) -> Any:
        """Return the vectors of all keys or bags; with ``mode`` None, the vectors of the distinct keys.

        ``_requires_grad``: an empty tensor that requires a gradient. Without it, autograd would not call ``backward``.
        """
        ctx.module, ctx.batch, ctx.mode, ctx.offsets = module, batch, mode, offsets
        vectors = module.table.pullDistinct(batch.distinct)
        if mode is None:
            return batch.vectors_on(module._buffers["_device"].device, vectors)
        rows = torch.from_numpy(vectors)
        if mode == "none":
            return functional.embedding(batch.inverse, rows)
        return functional.embedding_bag(batch.inverse, rows, offsets, mode=mode)

    @staticmethod
    def backward(ctx: Any, gradients: Any) -> tuple[None, None, None, None, None]:
        if ctx.mode is None:
            sums = copy_out(gradients)
        else:
            sums = ctx.batch.sum_gradients(gradients.numpy(), ctx.mode, ctx.offsets)
        ctx.module._push(ctx.batch.distinct, sums)
        return None, None, None, None, None
