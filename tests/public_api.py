"""What users of PS2 can name: public names, signatures, params, and options of commands, as data.

``python -m tests.public_api`` writes ``public_api.json``; ``tests/unit/test_public_api.py`` compares with it. A commit
that changes that file shows what it changes for users.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import click
from pyspark.ml import Estimator, Model, Transformer
from pyspark.ml.param import Param, Params

from ps2.algorithms.frame.settings import Setting
from ps2.cli.main import cli

RECORD = Path(__file__).with_suffix(".json")
MODULES = (
    "ps2",
    "ps2.algorithms",
    "ps2.algorithms.classification",
    "ps2.algorithms.recommendation",
    "ps2.algorithms.regression",
    "ps2.data.hashing",
    "ps2.mlflow",
    "ps2.onnx",
    "ps2.serving",
)
# Members of classes of pyspark and Python, and params of Spark 4: they differ between versions.
OTHERS = {name for cls in (Estimator, Model, Transformer, Exception) for name in dir(cls)}
SPARK_4 = {"intermediateStorageLevel", "pruneTree"}
Description = dict[str, Any]


def public_api() -> dict[str, Description]:
    """Describe each public name of the modules, and each command."""
    names = {
        f"{module}.{name}": describe(getattr(import_module(module), name))
        for module in MODULES
        for name in import_module(module).__all__
    }
    return names | dict(commands(cli, "ps2"))


def describe(value: Any) -> Description:
    """Describe a class with its members and params, a function with its signature, or a constant."""
    if not inspect.isclass(value):
        return {"call": signature(value)} if callable(value) else {"type": type(value).__name__}
    settings = params(value) if issubclass(value, Params) else {}
    accessors = {verb + name[0].upper() + name[1:] for name in {*settings, *SPARK_4} for verb in ("get", "set")}
    names = {name for name in dir(value) if not name.startswith("_")} - accessors - set(settings) - OTHERS - SPARK_4
    names = {name for name in names if hasattr(value, name)}
    result = {"call": signature(value), "members": {name: member(value, name) for name in sorted(names)}}
    return result | ({"params": settings} if settings else {})


def member(cls: type, name: str) -> str:
    """Return the signature of a method, and the kind of another member."""
    static = inspect.getattr_static(cls, name)
    return signature(getattr(cls, name)) if callable(getattr(cls, name)) else type(static).__name__


def signature(value: Any) -> str:
    """Return names, kinds and defaults of the arguments, without types."""
    try:
        whole = inspect.signature(value)
    except ValueError:  # a class of Python's own, such as an exception
        return ""
    arguments = [untyped(one) for one in whole.parameters.values() if one.name not in SPARK_4]
    return str(whole.replace(parameters=arguments, return_annotation=whole.empty))


def untyped(argument: inspect.Parameter) -> inspect.Parameter:
    """Return the argument without its type. pyspark's default of a seed differs from process to process."""
    sample = argument.name == "seed" and isinstance(argument.default, int) and argument.default > 1000
    return argument.replace(annotation=argument.empty, default=... if sample else argument.default)


def params(cls: type[Params]) -> dict[str, str]:
    """Return which of its getter and setter each param has. Texts of params are free to become clearer."""
    kinds = (Param, Setting)
    names = [name for name in dir(cls) if isinstance(inspect.getattr_static(cls, name), kinds) and name not in SPARK_4]
    return {
        name: " ".join(verb for verb in ("get", "set") if hasattr(cls, verb + name[0].upper() + name[1:]))
        for name in names
    }


def commands(command: click.Command, path: str) -> Iterator[tuple[str, Description]]:
    """Yield the arguments and options of a command and of those below it."""
    yield f"command {path}", {"/".join([*o.opts, *o.secondary_opts]): option(o) for o in command.params}
    if isinstance(command, click.Group):
        for name, one in command.commands.items():
            yield from commands(one, f"{path} {name}")


def option(option: click.Parameter) -> str:
    """Describe the kind, range and default of an option or argument."""
    kind, default = option.type, option.default
    if isinstance(kind, click.Choice):
        values = f"one of {', '.join(kind.choices)}"
    elif isinstance(kind, (click.IntRange, click.FloatRange)):
        ends = "(" if kind.min_open else "[", ")" if kind.max_open else "]"
        values = f"{kind.name} {ends[0]}{kind.min}, {kind.max}{ends[1]}"
    else:
        values = kind.name
    words = [
        values,
        "required" * option.required,
        "multiple" * option.multiple,
        f"nargs {option.nargs}" * (option.nargs != 1),
    ]
    has_default = isinstance(default, (bool, int, float, str))
    return "; ".join([word for word in words if word] + [f"default {default!r}"] * has_default)


def text() -> str:
    """Return the record: a line a name."""
    lines = [f"{json.dumps(name)}: {json.dumps(one, sort_keys=True)}" for name, one in sorted(public_api().items())]
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    RECORD.write_text(text())
