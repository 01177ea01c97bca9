"""Hints for misspelt names in errors."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def nearest(name: str, names: Iterable[str]) -> str | None:
    """Return the most similar name. Case, dashes and underscores do not count. None: no name is similar."""
    plain = {_plain(candidate): candidate for candidate in names}
    matches = difflib.get_close_matches(_plain(name), plain, n=1)
    return plain[matches[0]] if matches else None


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return the end of an error about an unknown name: the most similar name, or all names."""
    near = nearest(name, names := list(names))
    return f"did you mean {near}?" if near else f"there are: {', '.join(names)}"


def hints_keywords(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function: the TypeError for an unknown keyword names the most similar one, as from Python 3.13 on."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except TypeError:
            names = [name for name in inspect.signature(function).parameters if name != "self"]
            if unknown := [name for name in kwargs if name not in names]:
                called = function.__qualname__.removesuffix(".__init__")
                hint = did_you_mean(unknown[0], names)
                raise TypeError(f"{called}: there is no keyword {unknown[0]!r}; {hint}") from None
            raise

    return call


def _plain(name: str) -> str:
    return name.replace("-", "").replace("_", "").lower()
