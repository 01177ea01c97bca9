"""What all trainings are asked: declared once, and given to a command as one argument."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from types import FunctionType
from typing import Any, cast

import click

from ps2.algorithms.frame.settings import Setting as ParamSetting
from ps2.algorithms.frame.settings import Settings, settings_of
from ps2.cli.output import Format
from ps2.cli.tls import add_tls_options
from ps2.config import TOKEN_FILE_VARIABLE
from ps2.errors import ConfigError

Command = Callable[..., Any]
Decorator = Callable[[Command], Command]


@dataclass(frozen=True)
class Files:
    """Rows with labels.

    Attributes:
        input, test: any URL that Spark reads: a file, a folder or a glob of LIBSVM text.
        features: how many there are; None: as many as the files have.
    """

    input: str
    test: str | None
    features: int | None


@dataclass(frozen=True)
class Setting:
    """Where a training runs, and what becomes of it.

    Attributes:
        output: the model's folder.
        overwrite: what is there may be replaced.
        plots: the folder of its pictures; None: there are none.
        form: of what is printed.
        workers: tasks that train; None: one a task slot, or, of graphs, one an executor.
        master: Spark's.
        servers: of a local fleet.
        fleet: addresses of a running one instead.
        token_file: of that.
        tls_cert, tls_key, tls_ca, tls_name: certificates of that.
        checkpoint_dir, checkpoint_every: where checkpoints go, and every how many seconds.
        restore: a checkpoint of the same training, to go on from.
    """

    output: str
    overwrite: bool
    plots: str | None
    form: Format
    workers: int | None
    master: str
    servers: int | None
    fleet: str | None
    token_file: str | None
    tls_cert: str | None
    tls_key: str | None
    tls_ca: str | None
    tls_name: str | None
    checkpoint_dir: str | None
    checkpoint_every: float | None
    restore: str | None


def gathered(cls: type, name: str, options: Sequence[Decorator]) -> Decorator:
    """Return a decorator that adds options to a command.

    Args:
        cls: a dataclass with a field for each option.
        name: of the argument in which the command gets it.
    """

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def call(**given: Any) -> Any:
            mine = {field.name: given.pop(field.name) for field in fields(cls)}
            return command(**{name: cls(**mine)}, **given)

        return functools.reduce(lambda made, option: option(made), reversed(options), cast(Command, call))

    return decorate


def checked(setting: ParamSetting[Any]) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """Return the callback of a parameter's option: the declaration's check says what is wrong with a value."""

    def check(context: click.Context, option: click.Parameter, value: Any) -> Any:
        if isinstance(value, str) and hasattr(setting.kind, "__args__"):  # list[int], ...
            (kind,) = setting.kind.__args__
            base = click.types.convert_type(kind)
            value = [base.convert(item, option, context) for item in value.split(",")]
        try:
            if isinstance(value, str) and isinstance(setting.kind, FunctionType):
                value = setting.kind(value)
            setting.check(value)
        except ConfigError as error:
            raise click.BadParameter(str(error).partition(": ")[2], context, option) from error
        except ValueError as error:
            raise click.BadParameter(f"expected {setting.allowed}, got {value!r}", context, option) from error
        return value

    return check


def param_options(settings: type[Settings], **defaults: Any) -> Decorator:
    """Return a decorator that gives a command an option for each parameter of an estimator that has one.

    The command gets the values under the parameters' names, None for those that are not set.

    Args:
        defaults: defaults of the command that are not those of the parameters; None: the parameter is not set.
    """

    def decorate(command: Command) -> Command:
        for name, setting in reversed(list(settings_of(settings).items())):
            if setting.option is None:
                continue
            default = defaults.get(name, setting.default)
            flag = "--" + (setting.option or re.sub("([A-Z])", r"-\1", name).lower())
            kind: Any = setting.kind if setting.kind in (int, float, bool) else str
            if setting.choices:
                kind = click.Choice(setting.choices, case_sensitive=False)
            if default is True:
                flag = f"{flag}/--no-{flag[2:]}"
            text = f"{setting.doc[0].upper()}{setting.doc[1:].rstrip('.')}."
            if default is None and isinstance(setting.default, (int, float)) and setting.kind is not bool:
                text += f"  [default: {setting.default}]"
            more: Any = {
                "type": kind,
                "is_flag": setting.kind is bool,
                "default": default,
                "show_default": default is not None,
                "help": text,
            }
            command = click.option(flag, name, callback=checked(setting), **more)(command)
        return command

    return decorate


files_options = gathered(
    Files,
    "files",
    [
        click.option("--input", required=True, metavar="FILE", help="LIBSVM file, folder or glob; .gz is fine."),
        click.option("--test", metavar="FILE", help="LIBSVM file to measure the model on."),
        click.option(
            "--features",
            type=click.IntRange(1),
            metavar="N",
            help="Number of features  [default: the largest index in the files].",
        ),
    ],
)

setting_options = gathered(
    Setting,
    "setting",
    [
        click.option("--output", required=True, metavar="DIR", help="Folder to save the model in."),
        click.option("--overwrite", is_flag=True, help="Replace an existing model."),
        click.option("--plots", metavar="DIR", help="Folder for plots of the training (PNG); needs matplotlib."),
        click.option(
            "-o",
            "form",
            type=click.Choice(["table", "json", "yaml"]),
            default="table",
            show_default=True,
            help="Output format.",
        ),
        click.option(
            "--workers",
            type=click.IntRange(1),
            help="Number of tasks  [default: one per task slot; graphs: one per executor, with all its cores].",
        ),
        click.option("--master", default="local[2]", show_default=True, help="Spark's master URL."),
        click.option(
            "--servers", type=click.IntRange(1), help="Number of servers of the local fleet to start  [default: 2]."
        ),
        click.option("--fleet", metavar="HOST:PORT,...", help="Use the servers of a running fleet instead."),
        click.option(
            "--token-file",
            type=click.Path(),
            envvar=TOKEN_FILE_VARIABLE,
            show_envvar=True,
            help="File with the running fleet's token.",
        ),
        functools.partial(add_tls_options, environment=True),
        click.option(
            "--checkpoint-dir", metavar="DIR", help="Folder for checkpoints, from which lost servers are recovered."
        ),
        click.option("--checkpoint-every", type=float, metavar="SECONDS", help="Seconds between checkpoints."),
        click.option(
            "--restore",
            metavar="DIR",
            help="Continue the training of this checkpoint, or of the newest in a folder.",
        ),
    ],
)
