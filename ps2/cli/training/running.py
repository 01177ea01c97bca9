"""What all trainings do around their own work: look at what was asked, start Spark and the fleet, read rows."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import click

from ps2.cli.training.options import Files, Setting
from ps2.errors import ConfigError, DivergedError, RecoveryError

if TYPE_CHECKING:
    from ps2.algorithms.spark_session import Interrupt
    from ps2.algorithms.text.libsvm import LabelledRows
    from ps2.coordinator.conf import PS2Conf


@dataclass(frozen=True)
class Read:
    """Files that were read.

    Attributes:
        features: how many there are.
        train, test: their rows.
    """

    features: int
    train: LabelledRows
    test: LabelledRows | None

    def frames(self, made: Callable[[LabelledRows], Any]) -> dict[str, Any]:
        """Return what is made of the rows, under the names by which people are told of them."""
        return {name: made(rows) for name, rows in (("train", self.train), ("test", self.test)) if rows is not None}


def check(paths: Iterable[str | None], setting: Setting) -> None:
    """Raise what is wrong, as far as it can be seen without Spark.

    Args:
        paths: of files to read; None: there is none.

    Raises:
        InputError: a file is missing, or cannot be read.
        ConfigError: pictures cannot be drawn, or not be put there; checkpoints are asked for, and no place for them;
            there is something already where the model is to be; the fleet's options do not go together.
        AuthError: the token cannot be read.
        CheckpointMissingError: there is nothing to go on from.
    """
    from ps2.algorithms.text.paths import check_local

    for path in filter(None, paths):
        check_local(path)
    _check_output(setting)
    if setting.plots is not None:
        from ps2.plot_extra import needs_matplotlib

        with needs_matplotlib("--plots"):
            import matplotlib  # noqa: F401
        make_local(setting.plots, "--plots")
    if setting.checkpoint_every is not None and setting.checkpoint_dir is None:
        raise ConfigError("--checkpoint-every: expected --checkpoint-dir too, got none")
    _check_fleet(setting)


def _check_output(setting: Setting) -> None:
    """Raise ConfigError for a model's folder on this machine that ``prepare_folder`` would not take."""
    from ps2.algorithms.text.paths import local_path

    local = local_path(setting.output)
    if local is None or setting.overwrite:
        return
    with suppress(OSError):  # what cannot be looked at is for prepare_folder to say
        if os.path.isfile(local) or (os.path.isdir(local) and os.listdir(local)):
            raise ConfigError(f"{setting.output}: there is something already, which only --overwrite replaces")


def _check_fleet(setting: Setting) -> None:
    from ps2.config import read_token
    from ps2.storage.folders import newest

    _conf_of(setting).check()
    if setting.fleet is not None and setting.token_file is not None:
        read_token(setting.token_file)
    if setting.restore is not None and "://" not in setting.restore:
        newest(setting.restore)


@contextmanager
def options_named() -> Iterator[None]:
    """Let errors that begin with the name of a param, or name a step size, say the command's option for it."""
    options = {option.name: option.opts[0] for option in click.get_current_context().command.params}
    try:
        yield
    except DivergedError as error:
        raise DivergedError(str(error).replace("stepSize", options.get("stepSize", "stepSize"))) from error
    except ConfigError as error:
        name, _, rest = str(error).partition(":")
        if name not in options:
            raise
        raise ConfigError(f"{options[name]}:{rest}") from error


def make_local(folder: str, option: str) -> None:
    """Make a folder of this machine's that an option asks for, or raise ConfigError."""
    if "://" in folder:
        raise ConfigError(f"{option}: expected a folder of this machine, got {folder}")
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{option}: expected a folder, or a place for one, got {folder}: {error.strerror}") from error


def in_spark(name: str, setting: Setting, interrupt: Interrupt, work: Callable[[Any, int], None]) -> None:
    """Do the work of a training in a Spark session, with a fleet; end both. Say on stderr what is done.

    Args:
        name: of the application.
        setting: where.
        interrupt: Ctrl-C.
        work: is given the session and the number of workers.
    """
    from ps2.cli.training.status_lines import StatusLines

    with StatusLines(name):
        _in_spark(name, setting, interrupt, work)


def _in_spark(name: str, setting: Setting, interrupt: Interrupt, work: Callable[[Any, int], None]) -> None:
    from ps2.algorithms.frame.dealing import check_workers
    from ps2.algorithms.frame.model_files import prepare_folder
    from ps2.algorithms.spark_session import get_or_create_session, plain_errors, silence_spark
    from ps2.algorithms.training.progress import say
    from ps2.coordinator.context import PS2Context
    from ps2.run.spark.backend_lookup import backend_of

    spark = get_or_create_session(setting.master, name)
    interrupt.install()
    say("starting the servers" if setting.fleet is None else f"attaching to {setting.fleet}")
    try:
        with (
            plain_errors(),
            PS2Context.getOrCreate(spark, conf=_conf_of(setting)) as ps,
        ):
            say("waiting for free task slots")
            ps.waitForSlots()
            workers = setting.workers or max(1, backend_of(spark).total_slots())
            check_workers(backend_of(spark), workers)
            prepare_folder(spark, setting.output, setting.overwrite)
            work(spark, workers)
    except BaseException:
        if interrupt.was_pressed:
            silence_spark(spark)
        raise
    finally:
        if not interrupt.was_pressed:
            spark.stop()


def _conf_of(setting: Setting) -> PS2Conf:
    from ps2.coordinator.conf import PS2Conf

    conf = PS2Conf(
        servers=setting.servers,
        fleet=setting.fleet,
        checkpointDir=setting.checkpoint_dir,
        checkpointEveryS=setting.checkpoint_every,
        restore=setting.restore,
    )
    if setting.fleet is None:
        return conf
    return replace(
        conf,
        tokenFile=setting.token_file,
        tlsCert=setting.tls_cert,
        tlsKey=setting.tls_key,
        tlsCa=setting.tls_ca,
        tlsName=setting.tls_name,
    )


def read(spark: Any, files: Files) -> Read:
    """Read the rows of all files."""
    from ps2.algorithms.text import libsvm

    paths = [files.input, *([files.test] if files.test else [])]
    features = files.features or max(libsvm.count_features(spark, path) for path in paths)
    train, *test = (libsvm.read(spark, path, features) for path in paths)
    return Read(features, train, test[0] if test else None)


NO_PICTURES: Mapping[str, Callable[[str], Any]] = MappingProxyType({})


def save(model: Any, setting: Setting, loader: str = "") -> str:
    """Write the model's folder; return a line for people that says how to load it.

    Args:
        loader: the class of ``ps2.algorithms`` that loads it without Spark; "": the model's own class.
    """
    from ps2.algorithms.training.progress import say

    output = setting.output
    say(f"saving {output}")
    model.write().overwrite().save(output)
    return f"model saved in {output}: ps2.algorithms.{loader or type(model).__name__}.load({output!r})"


def save_and_draw(
    model: Any, setting: Setting, objective: str = "loss.png", more: Mapping[str, Callable[[str], Any]] = NO_PICTURES
) -> None:
    """Write the model's folder and draw the ``pictures``; with tables as the output, say where each is."""
    is_table = setting.form == "table"
    saved = save(model, setting)
    if is_table:
        click.echo(saved)
    for path in draw(model, setting, objective, more):
        if is_table:
            click.echo(f"wrote {path}")


def pictures(
    model: Any,
    setting: Setting,
    objective: str = "loss.png",
    more: Mapping[str, Callable[[str], Any]] = NO_PICTURES,
) -> dict[str, Callable[[str], Any]]:
    """Return what draws the pictures that are wanted, by their paths.

    Args:
        objective: name of the one of what gets smaller, by step.
        more: pictures that a family has of its own, by name: each is given its path.
    """
    if setting.plots is None:
        return {}
    named: dict[str, Callable[[str], Any]] = {objective: model.summary.plot, **more}
    if hasattr(model, "plotImportances") and model.featureImportances.numNonzeros():
        named["importances.png"] = model.plotImportances
    if not model.summary.history.steps:  # a training that was restored may have had all of them
        del named[objective]
    return {os.path.join(setting.plots, name): plot for name, plot in named.items()}


def draw(
    model: Any,
    setting: Setting,
    objective: str = "loss.png",
    more: Mapping[str, Callable[[str], Any]] = NO_PICTURES,
) -> list[str]:
    """Draw the ``pictures`` that are wanted; return their paths.

    Raises:
        RecoveryError: the file system refuses.
    """
    wanted = pictures(model, setting, objective, more)
    for path, plot in wanted.items():
        try:
            plot(path)
        except OSError as error:
            from ps2.storage.files import reason

            raise RecoveryError(f"{path}: writing failed: {reason(error)}") from error
    return list(wanted)
