"""Hints about misspelt names, for messages of errors."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def nearest(name: str, names: Iterable[str]) -> str | None:
    """Return the most similar name, or None if no name is similar. Case, dashes and underscores do not count."""
    name_by_plain = {_plain(candidate): candidate for candidate in names}
    matches = difflib.get_close_matches(_plain(name), name_by_plain, n=1)
    return name_by_plain[matches[0]] if matches else None


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return the end of an error about an unknown name: the most similar name, or all names."""
    match = nearest(name, names := list(names))
    return f"did you mean {match}?" if match else f"there are: {', '.join(names)}"


def hints_keywords(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function: the TypeError for an unknown keyword names the most similar one, as in Python 3.13."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except TypeError:
            names = [name for name in inspect.signature(function).parameters if name != "self"]
            if unknown := [name for name in kwargs if name not in names]:
                function_name = function.__qualname__.removesuffix(".__init__")
                hint = did_you_mean(unknown[0], names)
                raise TypeError(f"{function_name}: there is no keyword {unknown[0]!r}; {hint}") from None
            raise

    return call


def _plain(name: str) -> str:
    return name.replace("-", "").replace("_", "").lower()
