"""The weights of a model in a folder.

A small model has ``weight.npy``, shape (dim, width), and ``biases.npy``; the weights of one on the fleet are a saved
vector, ``weight``, whose shards the servers write and read.
"""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

import numpy as np

from ps2.algorithms.frame.array_files import read_array, reading, write_arrays
from ps2.algorithms.linear.problem import Problem
from ps2.algorithms.linear.weights import KeyedWeights, Weights
from ps2.client.dcv import DCV
from ps2.coordinator.context import PS2Context
from ps2.errors import CheckpointCorruptError, StoppedError
from ps2.ops.kernels import Float64s
from ps2.storage.folders import read_manifest
from ps2.storage.saved_arrays import load_numpy

FORMAT = "ps2.model.v1"


def write_weights(url: str, weights: Weights) -> dict[str, Any]:
    """Write a model; return its entries for the metadata."""
    arrays = {"biases.npy": weights.biases}
    if not isinstance(weights.weight, DCV):
        arrays["weight.npy"] = weights.weight
    files = write_arrays(url, arrays)
    if isinstance(weights.weight, DCV):
        weights.weight.save(f"{url}/weight")
    return {"format": FORMAT, "problem": asdict(weights.problem), "files": files}


def read_weights(path: str, url: str, content: Any) -> Weights:
    """Read a model.

    Raises:
        UsageError: it is of a version that is not known here.
        CheckpointCorruptError: the files are not what the metadata say.
        StoppedError: its weights belong on servers, and no PS2Context is active.
    """
    problem, weight, biases = _read_arrays(path, url, content)
    if weight is not None:
        return Weights(problem, weight, biases)
    if PS2Context.getActive() is None:
        raise StoppedError(
            f"{path}: the model has {problem.size:,} weights, which belong on servers; start them with "
            "PS2Context.getOrCreate(spark) first"
        )
    vector = DCV.load(f"{url}/weight")
    _check_size(path, problem, vector.dim)
    return Weights(problem, vector, biases)


def read_without_servers(path: str, url: str, content: Any) -> Weights | KeyedWeights:
    """Read a model's weights as arrays, also those that servers wrote; raises like ``read_weights``."""
    problem, weight, biases = _read_arrays(path, url, content)
    if weight is not None:
        return Weights(problem, weight, biases)
    folder = f"{url}/weight"
    found = load_numpy(folder)
    if isinstance(found, tuple):
        keys, values = found
        _check_size(path, problem, read_manifest(folder).matrices[0].spec.dim)
        return KeyedWeights(problem, keys, values, biases)
    _check_size(path, problem, found.size)
    return Weights(problem, found.reshape(problem.dim, problem.width), biases)


def _read_arrays(path: str, url: str, content: Any) -> tuple[Problem, Float64s | None, Float64s]:
    """Return the problem, the weights of a small model, and the biases."""
    with reading(path, content, FORMAT, "a model"):
        problem = Problem(**{name: content["problem"][name] for name in (field.name for field in fields(Problem))})
        files = dict(content["files"])
        biases = _read(path, url, "biases.npy", files, (problem.biases,))
        if "weight.npy" in files:
            return problem, _read(path, url, "weight.npy", files, (problem.dim, problem.width)), biases
    return problem, None, biases


def _check_size(path: str, problem: Problem, found: int) -> None:
    if found != problem.size:
        raise CheckpointCorruptError(f"{path}/weight: expected {problem.size} weights, got {found}")


def _read(path: str, url: str, name: str, files: dict[str, Any], shape: tuple[int, ...]) -> Float64s:
    array = read_array(url, name, files)
    if array.shape != shape:
        raise CheckpointCorruptError(f"{path}/{name}: expected shape {shape}, got {array.shape}")
    return np.asarray(array, np.float64)
