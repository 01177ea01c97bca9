"""Files of a topic model: NumPy arrays beside the metadata that pyspark writes."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from ps2.algorithms.estimators.array_files import read_array, reading, write_arrays
from ps2.algorithms.topics.inference import InferenceName

Array = npt.NDArray[Any]

FORMAT = "ps2.topics.v1"
MODEL_CLASS = "ps2.algorithms.clustering.LDAModel"


def write_topics(url: str, counts: Array, alpha: Array, beta: float, inference: InferenceName, seed: int) -> Any:
    """Write a topic model's arrays; return their entries for the metadata.

    Raises:
        RecoveryError: the file system refuses.
    """
    if counts.dtype.kind != "f":
        counts = counts.astype(np.min_scalar_type(int(counts.max(initial=0))))
    return {
        "format": FORMAT,
        "beta": beta,
        "inference": inference,
        "seed": seed,
        "shape": list(counts.shape),
        "files": write_arrays(url, {"counts.npy": counts, "alpha.npy": alpha}),
    }


def read_topics(path: str, url: str, content: Any) -> tuple[Array, Array, float, InferenceName, int]:
    """Read the arrays of ``write_topics``.

    Args:
        path: the name that the user gave.
        content: the entries that ``write_topics`` returned.

    Raises:
        UsageError: the version is unknown.
        CheckpointCorruptError: the files do not match their entries.
    """
    with reading(path, content, FORMAT, "topics"):
        counts, alpha = (read_array(url, f"{name}.npy", content["files"]) for name in ("counts", "alpha"))
        if list(counts.shape) != content["shape"] or alpha.shape != counts.shape[1:]:
            raise ValueError(f"shapes {counts.shape} and {alpha.shape}")
        if content["inference"] not in get_args(InferenceName):
            raise ValueError(f"inference: {content['inference']!r}")
        return counts, alpha, float(content["beta"]), content["inference"], int(content["seed"])
