"""The options of ``ps2 train``: those made from an estimator's settings, and those that all commands have."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FunctionType
from typing import TYPE_CHECKING, Any

import click

from ps2.algorithms.frame.settings import Setting, Settings, settings_of
from ps2.cli.options import Decorator, FiniteRange, tls_arguments
from ps2.cli.output import Format
from ps2.config import DEFAULT_NAMESPACE, TOKEN_FILE_VARIABLE
from ps2.errors import ConfigError, DivergedError

if TYPE_CHECKING:
    from ps2.coordinator.conf import PS2Conf

# A word that may be the name of a param, perhaps with a value: maxIter, via='rows'.
PARAM = re.compile(r"(?<![\w.])(?P<name>[a-z]\w*(?:\.\w+)*)(?P<equals>=(?='))?")
# The name of the column that marks held-out rows, and the option for their number.
HELD_OUT_COLUMN = "held out"
HELD_OUT_OPTION = click.option(
    "--held-out",
    type=FiniteRange(0, 1, min_open=True, max_open=True),
    metavar="FRACTION",
    help="Fraction of the rows that are held out to validate the training.",
)
# The params that RUN_OPTIONS set.
RUN_PARAMS = {"numWorkers": "--workers", "numServers": "--servers"}


@dataclass(frozen=True)
class RunOptions:
    """The options that all commands have; the help texts in ``RUN_OPTIONS`` describe the fields."""

    output: str
    overwrite: bool
    plots: str | None
    form: Format
    workers: int | None
    master: str
    servers: int | None
    fleet: str | None
    namespace: str | None
    token_file: str | None
    tls_cert: str | None
    tls_key: str | None
    tls_ca: str | None
    tls_name: str | None
    checkpoint_dir: str | None
    checkpoint_every: float | None
    restore: str | None

    def check(self) -> None:
        """Check what can be checked without Spark; raise PS2Error."""
        from ps2.config import read_token
        from ps2.storage.folders import newest

        self._check_output()
        if self.plots is not None:
            from ps2.plot_extra import needs_matplotlib

            with needs_matplotlib("--plots"):
                import matplotlib  # noqa: F401
            make_local(self.plots, "--plots")
        if self.checkpoint_every is not None and self.checkpoint_dir is None:
            raise ConfigError("--checkpoint-every needs --checkpoint-dir")
        self.conf().check()
        if self.fleet is not None and self.token_file is not None:
            read_token(self.token_file)
        if self.restore is not None and "://" not in self.restore:
            newest(self.restore)

    def _check_output(self) -> None:
        """Raise ConfigError if the model's folder is local and ``prepare_folder`` would refuse it."""
        from ps2.algorithms.text.paths import local_path

        local = local_path(self.output)
        if local is None or self.overwrite:
            return
        with suppress(OSError):  # prepare_folder reports a folder that cannot be listed
            if os.path.isfile(local) or (os.path.isdir(local) and os.listdir(local)):
                raise ConfigError(f"{self.output}: there is something already, which only --overwrite replaces")

    def conf(self) -> PS2Conf:
        from ps2.coordinator.conf import PS2Conf

        credentials: dict[str, Any] = {
            "tokenFile": self.token_file,
            "tlsCert": self.tls_cert,
            "tlsKey": self.tls_key,
            "tlsCa": self.tls_ca,
            "tlsName": self.tls_name,
        }
        return PS2Conf(
            servers=self.servers,
            fleet=self.fleet,
            namespace=self.namespace or DEFAULT_NAMESPACE,
            checkpointDir=self.checkpoint_dir,
            checkpointEveryS=self.checkpoint_every,
            restore=self.restore,
            **({} if self.fleet is None else credentials),
        )


RUN_OPTIONS: list[Decorator] = [
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
    click.option(
        "--fleet",
        metavar="HOST:PORT,...",
        help="Use the servers of this running fleet instead: addresses, or a name of 'ps2 launch' on this host.",
    ),
    click.option(
        "--namespace",
        help="Name of this training on the fleet, which it shares with programs of other names  [default: default].",
    ),
    click.option(
        "--token-file",
        type=click.Path(),
        envvar=TOKEN_FILE_VARIABLE,
        show_envvar=True,
        help="File with the running fleet's token.",
    ),
    *tls_arguments(environment=True),
    click.option(
        "--checkpoint-dir", metavar="DIR", help="Folder for checkpoints, from which lost servers are recovered."
    ),
    click.option("--checkpoint-every", type=float, metavar="SECONDS", help="Seconds between checkpoints."),
    click.option(
        "--restore", metavar="DIR", help="Continue the training of this checkpoint, or of the newest in a folder."
    ),
]


def make_local(folder: str, option: str) -> None:
    """Make the local folder that an option names, or raise ConfigError."""
    if "://" in folder:
        raise ConfigError(f"{option}: expected a folder of this machine, got {folder}")
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"{option}: expected a folder that exists or can be created, got {folder}: {error.strerror}"
        ) from error


def param_options(
    settings: Mapping[str, type[Settings]], defaults: Mapping[str, Any], other_names: Mapping[str, str]
) -> list[Decorator]:
    """Return the options of settings. A command gets their values as keyword arguments with the settings' names.

    Args:
        settings: the settings of the command's estimators, by the value of the option that chooses the estimator.
        defaults: the defaults of params that differ from those of the settings; None: the param is not set.
        other_names: the texts by which the help refers to params that have no option, by param.
    """
    declared: dict[str, dict[str, Setting[Any]]] = {}
    for value, cls in settings.items():
        for name, setting in settings_of(cls).items():
            declared.setdefault(name, {})
            if setting.option is not None:
                declared[name][value] = setting
    flags = {name: _flag(next(iter(variants.values()))) for name, variants in declared.items() if variants}
    names = {**{name: f"the estimator's {name}" for name in declared}, **RUN_PARAMS, **flags, **other_names}
    options = []
    for name, flag in flags.items():
        variants = declared[name]
        text = _by_value({value: name_options(setting.doc, names) for value, setting in variants.items()}, settings)
        options.append(_param_option(variants, flag, defaults, text))
    return options


def _flag(setting: Setting[Any]) -> str:
    return "--" + (setting.option or re.sub("([A-Z])", r"-\1", setting.name).lower())


def _by_value(texts: Mapping[str, str], values: Collection[str]) -> str:
    """Join the distinct texts. A text that does not belong to all ``values`` of an option is followed by its values.

    Example: "The number of steps (lr, fm). The number of passes (deepfm)".
    """
    by_text: dict[str, list[str]] = {}
    for value, text in texts.items():
        by_text.setdefault(f"{text[0].upper()}{text[1:].rstrip('.')}", []).append(value)
    return ". ".join(
        text if len(text_values) == len(values) else f"{text} ({', '.join(text_values)})"
        for text, text_values in by_text.items()
    )


def _param_option(variants: Mapping[str, Setting[Any]], flag: str, defaults: Mapping[str, Any], text: str) -> Decorator:
    """Return the option of a param. ``variants``: its settings, by the value that chooses the estimator."""
    setting = next(iter(variants.values()))
    default = defaults.get(setting.name, setting.default)
    # If the estimators allow different values, the estimator itself checks the value.
    is_checked = len({variant.allowed for variant in variants.values()}) == 1
    kind: Any = setting.kind if setting.kind in (int, float, bool) else str
    if setting.choices and is_checked:
        kind = click.Choice(setting.choices, case_sensitive=False)
    text = f"{text}."
    if default is None and isinstance(setting.default, (int, float)) and setting.kind is not bool:
        values = {value: str(variant.default) for value, variant in variants.items()}
        text += f"  [default: {_by_value(values, variants)}]"
    details: Any = {
        "type": kind,
        "is_flag": setting.kind is bool,
        "default": default,
        "show_default": default is not None,
        "metavar": "LIST" if hasattr(setting.kind, "__args__") else None,
        "help": text,
        "callback": _checking_callback(setting) if is_checked else None,
    }
    declaration = f"{flag}/--no-{flag[2:]}" if default is True else flag
    return click.option(declaration, setting.name, **details)


def name_options(text: str, names: Mapping[str, str]) -> str:
    """Return a setting's description with the names of params replaced by those of options.

    ``names`` maps params to options. A word is a param only if it has a capital letter or is followed by a value.
    """

    def name_option(word: re.Match[str]) -> str:
        name, equals = word["name"], word["equals"]
        if name not in names or not (equals or name != name.lower()):
            return word[0]
        return f"{names[name]} " if equals else names[name]

    return PARAM.sub(name_option, text)


def _checking_callback(setting: Setting[Any]) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """Return the callback of a param's option. It converts and checks the value by the setting's declaration."""

    def check(context: click.Context, option: click.Parameter, value: Any) -> Any:
        if value is None:  # the option is not set
            return None
        if isinstance(value, str) and hasattr(setting.kind, "__args__"):  # list[int], ...
            (kind,) = setting.kind.__args__
            base = click.types.convert_type(kind)
            value = [base.convert(item, option, context) for item in value.split(",")]
        try:
            if isinstance(value, str) and isinstance(setting.kind, FunctionType):
                value = setting.kind(value)
            if value is not None:  # None: the option is not used
                setting.check(value)
        except ConfigError as error:
            raise click.BadParameter(str(error).partition(": ")[2], context, option) from error
        except ValueError as error:
            raise click.BadParameter(f"expected {setting.allowed}, got {value!r}", context, option) from error
        return value

    return check


@contextmanager
def naming_options() -> Iterator[None]:
    """Replace the param at the beginning of a ConfigError, and stepSize in a DivergedError, by the command's option."""
    options = {option.name: option.opts[0] for option in click.get_current_context().command.params}
    try:
        yield
    except DivergedError as error:
        raise DivergedError(str(error).replace("stepSize", options.get("stepSize", "stepSize"))) from error
    except ConfigError as error:
        name, _, text = str(error).partition(":")
        if name not in options:
            raise
        raise ConfigError(f"{options[name]}:{text}") from error
