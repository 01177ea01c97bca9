"""JSON data, checked field by field: errors name the field that is wrong."""

from __future__ import annotations

from typing import Any

from ps2.errors import CheckpointCorruptError

TYPE_NAMES = {
    int: "an integer",
    float: "a number",
    str: "a string",
    list: "a list",
    dict: "an object",
    type(None): "null",
}


class Fields:
    """The fields of a JSON object, checked as they are read."""

    def __init__(self, where: str, content: object) -> None:
        self.where = where
        if not isinstance(content, dict):
            raise CheckpointCorruptError(f"{where}: expected an object, got {short(content)}")
        self._content = content

    def __contains__(self, name: str) -> bool:
        return name in self._content

    def get(self, name: str, *types: type) -> Any:
        """Return a field that has one of these types; booleans do not count as integers."""
        if name not in self._content:
            raise CheckpointCorruptError(f"{self.where}: {name} is missing")
        value = self._content[name]
        if not isinstance(value, types) or isinstance(value, bool):
            raise self.wrong(name, " or ".join(TYPE_NAMES[type] for type in types))
        return value

    def count(self, name: str) -> int:
        """Return a non-negative integer."""
        value: int = self.get(name, int)
        if value < 0:
            raise self.wrong(name, "a non-negative integer")
        return value

    def counts(self, name: str) -> tuple[int, ...]:
        """Return a list of non-negative integers."""
        values: list[Any] = self.get(name, list)
        if not all(is_count(value) for value in values):
            raise self.wrong(name, "a list of non-negative integers")
        return tuple(values)

    def objects(self, name: str) -> list[Fields]:
        values: list[Any] = self.get(name, list)
        return [Fields(f"{self.where}: {name}[{i}]", value) for i, value in enumerate(values)]

    def object(self, name: str) -> Fields:
        return Fields(f"{self.where}: {name}", self.get(name, dict))

    def wrong(self, name: str, expected: str) -> CheckpointCorruptError:
        return CheckpointCorruptError(f"{self.where}: {name}: expected {expected}, got {short(self._content[name])}")


def is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
