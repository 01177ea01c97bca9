"""The weights of a model in a folder.

A small model has ``weight.npy``, shape (dim, width), and ``biases.npy``; the weights of one on the fleet are a saved
vector, ``weight``, whose shards the servers write and read.
"""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

from ps2.algorithms.estimators.model_files import read_array, write_array
from ps2.algorithms.linear.problem import Problem
from ps2.algorithms.linear.weights import Weights
from ps2.client.dcv import DCV
from ps2.coordinator.context import PS2Context
from ps2.errors import CheckpointCorruptError, StoppedError, UsageError
from ps2.storage.files import place, reported

FORMAT = "ps2.model.v1"


def write_weights(url: str, weights: Weights) -> dict[str, Any]:
    """Write a model; return what the metadata have to say of them."""
    fs, root = place(url)
    with reported(root, "making the folder"):
        fs.makedirs(root, exist_ok=True)
    files = {"biases.npy": write_array(fs, f"{root}/biases.npy", weights.biases)}
    if isinstance(weights.weight, DCV):
        weights.weight.save(f"{url}/weight")
    else:
        files["weight.npy"] = write_array(fs, f"{root}/weight.npy", weights.weight)
    return {"format": FORMAT, "problem": asdict(weights.problem), "files": files}


def read_weights(path: str, url: str, content: Any) -> Weights:
    """Read a model.

    Raises:
        UsageError: it is of a version that is not known here.
        CheckpointCorruptError: the files are not what the metadata say.
        StoppedError: its weights belong on servers, and no PS2Context is active.
    """
    found = content.get("format") if isinstance(content, dict) else None
    if found != FORMAT:
        raise UsageError(f"{path}: expected a model of format {FORMAT!r}, got {found!r}; another version wrote it")
    try:
        problem = Problem(**{name: content["problem"][name] for name in (field.name for field in fields(Problem))})
        files = dict(content["files"])
        biases = read_array(url, "biases.npy", files, (problem.biases,))
        if "weight.npy" in files:
            return Weights(problem, read_array(url, "weight.npy", files, (problem.dim, problem.width)), biases)
    except (KeyError, TypeError) as error:
        raise CheckpointCorruptError(f"{path}: a part of the metadata is missing or wrong: {error!r}") from error
    if PS2Context.getActive() is None:
        raise StoppedError(
            f"{path}: the model has {problem.size:,} weights, which belong on servers; start them with "
            "PS2Context.getOrCreate(spark) first"
        )
    weight = DCV.load(f"{url}/weight")
    if weight.dim != problem.size:
        raise CheckpointCorruptError(f"{path}/weight: expected {problem.size} weights, got {weight.dim}")
    return Weights(problem, weight, biases)
