"""The device of a module: a GPU for each worker, and copies between the process's memory and the device.

On the CPU, copies share memory. To a GPU, all arrays go in one copy from pinned memory, which the process need not wait
for. The kernels that the GPU runs next wait for it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ps2.client.task import task_context
from ps2.errors import ConfigError
from ps2.torch.columns import Bags

# Arrays begin at multiples of this many bytes in a buffer.
ALIGN = 16
# The attribute of a tensor of keys on a device: the tensor that it is a copy of, and the version of the copy.
HOST_KEYS = "_ps2_host_keys"


def choose_device(name: str, local_rank: int = 0) -> Any:
    """Return the ``torch.device`` of a process.

    Args:
        name: "auto" (a GPU if there is one), "cpu", "cuda" or "cuda:N". For "auto" and "cuda", it is the GPU that Spark
            has assigned to the task; without one, the processes of a host share the GPUs by ``local_rank``.
        local_rank: the number of the process among those of this host.

    Raises:
        ConfigError: PyTorch has no such GPU on this host.
    """
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ConfigError(f"device: expected 'auto' or 'cpu', because PyTorch finds no GPU on this host, got {name!r}")
    count = torch.cuda.device_count()
    number = re.fullmatch(r"cuda:(\d+)", name)
    index = int(number[1]) if number else _assigned_gpu(count)
    if index is None:
        index = local_rank % count
    if index >= count:
        raise ConfigError(f"device: expected a GPU below cuda:{count}, because this host has {count}, got {name!r}")
    return torch.device("cuda", index)


def _assigned_gpu(count: int) -> int | None:
    """Return the index of the GPU that Spark has assigned to this task (``spark.task.resource.gpu.amount``)."""
    context = task_context()
    addresses = context.resources()["gpu"].addresses if context is not None and "gpu" in context.resources() else ()
    index = int(addresses[0]) if addresses and addresses[0].isdigit() else count
    return index if index < count else None


def is_apart(device: Any) -> bool:
    """Return whether a device has memory of its own."""
    return bool(device.type != "cpu")


def host_memory(num_bytes: int) -> Any:
    """Return a tensor of bytes in the process's memory; pinned if there is a GPU."""
    return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=torch.cuda.is_available())


def copy_in(arrays: Sequence[np.ndarray[Any, Any]], device: Any) -> list[Any]:
    """Return arrays as tensors on a device, which takes one copy; on the CPU they share memory."""
    if not is_apart(device):
        return [torch.from_numpy(array) for array in arrays]
    ends = np.cumsum([-(-array.nbytes // ALIGN) * ALIGN for array in arrays], dtype=np.int64)
    slices = [slice(int(end), int(end) + array.nbytes) for end, array in zip([0, *ends], arrays, strict=False)]
    # PyTorch uses pinned memory again only after the copies from it have ended.
    buffer = host_memory(int(ends[-1]))
    memory = buffer.numpy()
    for place, array in zip(slices, arrays, strict=True):
        memory[place].view(array.dtype).reshape(array.shape)[...] = array
    packed = send(buffer, device)
    dtypes = [torch.from_numpy(np.empty(0, array.dtype)).dtype for array in arrays]
    return [
        packed[place].view(dtype).view(array.shape) for place, dtype, array in zip(slices, dtypes, arrays, strict=True)
    ]


def copy_out(tensor: Any) -> np.ndarray[Any, Any]:
    """Return a tensor as an array, after one copy; on the CPU they share memory."""
    tensor = tensor.detach().contiguous()
    if not is_apart(tensor.device):
        return tensor.numpy()
    buffer = host_memory(tensor.numel() * tensor.element_size())
    receive(buffer, tensor)
    return buffer.view(tensor.dtype).view(tensor.shape).numpy()


def send(buffer: Any, device: Any) -> Any:
    """Begin the copy of a buffer to a device, and return the tensor there."""
    return buffer.to(device, non_blocking=True)


def receive(buffer: Any, tensor: Any) -> None:
    """Copy a tensor from its device to a buffer, and wait for it."""
    buffer.view(tensor.dtype).copy_(tensor.reshape(-1))


def batch_to(device: Any, tensors: Sequence[Any]) -> list[Any]:
    """Return the tensors of a minibatch on a device, in one copy; ``Bags`` stay in the process's memory.

    Tensors of integers can be keys, so they refer to the tensor that they are copies of (``host_keys``).
    """
    if not is_apart(device):
        return list(tensors)
    dense = [tensor for tensor in tensors if not isinstance(tensor, Bags)]
    copies = iter(copy_in([tensor.numpy() for tensor in dense], device))
    result: list[Any] = [tensor if isinstance(tensor, Bags) else next(copies) for tensor in tensors]
    for copied, tensor in zip(result, tensors, strict=True):
        if not isinstance(tensor, Bags) and tensor.dtype == torch.int64:
            setattr(copied, HOST_KEYS, (tensor, copied._version))
    return result


def host_keys(keys: Any) -> Any:
    """Return keys in the process's memory, by a copy unless ``batch_to`` made ``keys``, and nothing changed them."""
    original, version = getattr(keys, HOST_KEYS, (keys, None))
    return original if version is not None and version == keys._version else keys.cpu()
