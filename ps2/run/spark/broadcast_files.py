"""Values that tasks share through a file of the session, where there are no broadcast variables."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import cloudpickle

# Limit of the values in the memory of one Python worker.
MAX_VALUES = 4


class BroadcastFile:
    """A value in a file that Spark brings to each executor once. Pickled, it is the file's name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._value: tuple[Any] | None = None

    @classmethod
    def written(cls, folder: Path, name: str, value: Any) -> BroadcastFile:
        """Write a value to a file in a folder."""
        (folder / name).write_bytes(cloudpickle.dumps(value))
        file = cls(name)
        file._value = (value,)
        return file

    @property
    def value(self) -> Any:
        return _read(self.name) if self._value is None else self._value[0]

    def unpersist(self) -> None:
        """Nothing: files of a session go with it."""

    def __reduce__(self) -> tuple[type[BroadcastFile], tuple[str]]:
        return BroadcastFile, (self.name,)


@lru_cache(maxsize=MAX_VALUES)
def _read(name: str) -> Any:
    from ps2.client.task import shipped_folder

    folder = shipped_folder()
    assert folder is not None, "only tasks read what the driver shares"
    return cloudpickle.loads(Path(folder, name).read_bytes())
