"""The base class of the commands of ``ps2 train``: from the options to the saved model."""

from __future__ import annotations

import inspect
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import click
from click.core import ParameterSource

from ps2.algorithms.frame.settings import Settings, settings_of
from ps2.cli.options import Decorator, add_options
from ps2.cli.output import print_data
from ps2.cli.training import printed
from ps2.cli.training.options import RUN_OPTIONS, RunOptions, naming_options, param_options
from ps2.errors import ConfigError, RecoveryError

D = TypeVar("D")


class Variant(NamedTuple):
    """An estimator that a command trains, and its settings."""

    estimator: str
    settings: type[Settings]


class TrainAndTest(NamedTuple):
    """The rows of the input files; ``test`` is None if there is no test file."""

    train: Any
    test: Any


class TrainingCommand(ABC, Generic[D]):
    """A command of ``ps2 train``. A subclass declares the command; an object is one call, with data of the type D.

    The docstring of the subclass is the command's help. If the subclass annotates an attribute with the name of an
    option, the attribute gets the option's value. The options that all commands have are in ``run``. All other options
    set params of the estimator.

    Attributes:
        name: the command's name.
        estimator: the estimator's name in ``ps2.algorithms``, if the command has only one.
        settings: the settings of that estimator. Each setting that has an option becomes an option of the command.
        choice: the option that chooses the estimator, if the command has several; else "".
        variants: the estimators by the value of ``choice``. The command has the options of all their settings.
        defaults: the defaults of params that differ from those of the settings; None: the param is not set.
        other_names: the texts by which the help refers to params that have no option, by param.
        file_text: the paragraph of the help about the input file.
        examples: the options of example calls, one call per line.
        usage: lines of Python that use the model.
        file_options, last_options: the options that the help shows before and after those of the settings.
        loader: the class in ``ps2.algorithms`` that loads the model without Spark; "": the class of the model.
        curve: the file name of the plot of the training loss.
        input, test: URLs that Spark reads: a file, a folder or a glob; ``test`` None: there is no test file.
        run: the options that all commands have.
        params: the values of the params that are set.
        paths: the URLs of the files to read; None: the option of an optional file is not set.
    """

    name: ClassVar[str]
    estimator: ClassVar[str]
    settings: ClassVar[type[Settings]]
    choice: ClassVar[str] = ""
    variants: ClassVar[Mapping[str, Variant]] = {}
    defaults: ClassVar[Mapping[str, Any]] = {}
    other_names: ClassVar[Mapping[str, str]] = {}
    file_text: ClassVar[str]
    examples: ClassVar[str]
    usage: ClassVar[str]
    file_options: ClassVar[Sequence[Decorator]]
    last_options: ClassVar[Sequence[Decorator]] = ()
    loader: ClassVar[str] = ""
    curve: ClassVar[str] = "loss.png"
    input: str
    test: str | None = None

    def __init__(self, run: RunOptions, params: dict[str, Any], attributes: dict[str, Any]) -> None:
        self.run, self.params = run, params
        vars(self).update(attributes)

    @classmethod
    def command(cls) -> click.Command:
        """Return the command for ``ps2 train``."""

        def call(**values: Any) -> None:
            run = RunOptions(**{field.name: values.pop(field.name) for field in fields(RunOptions)})
            annotations = [item for base in cls.__mro__ for item in inspect.get_annotations(base).items()]
            annotated = {name for name, kind in annotations if not str(kind).startswith("ClassVar")}
            attributes = {name: values.pop(name) for name in annotated & values.keys()}
            cls(run, {name: value for name, value in values.items() if value is not None}, attributes).train()

        settings = {value: variant.settings for value, variant in cls.variants.items()} or {"": cls.settings}
        params = param_options(settings, cls.defaults, cls.other_names)
        options = [*cls.file_options, *params, *cls.last_options, *RUN_OPTIONS]
        text = f"{inspect.cleandoc(str(cls.__doc__))}\n\n{cls.file_text}"
        examples = _indented(cls.examples, f"ps2 train {cls.name} ")
        epilog = f"\b\nExamples:\n{examples}\n\n\b\nUse the model:\n{_indented(cls.usage)}"
        return click.command(cls.name, help=text, epilog=epilog)(add_options(call, options))

    # Subclasses override the following methods.

    @property
    def paths(self) -> list[str | None]:
        return [self.input, self.test]

    def make_estimator(self) -> Any:
        """Return the estimator; raise ConfigError if options of the command contradict params."""
        return self.new_estimator()

    def check_estimator(self, estimator: Any) -> None:
        """Raise ConfigError if params contradict each other."""
        estimator._check()

    def check_files(self) -> None:
        """Check what can be checked without Spark, of the files and ``run``; raise PS2Error."""
        from ps2.algorithms.text.paths import check_local

        for path in filter(None, self.paths):
            check_local(path)
        self.run.check()

    @abstractmethod
    def read(self, spark: Any) -> D:
        """Read the files."""

    def chooses_workers(self, estimator: Any) -> bool:
        """Return whether the estimator chooses the number of workers unless --workers is given."""
        return False

    @abstractmethod
    def fit(self, estimator: Any, data: D) -> Any:
        """Train; return the model."""

    def measure(self, model: Any, data: D) -> Any:
        """Return the model's measures, such as its errors on the test file; None: the command has none."""
        return None

    @abstractmethod
    def print_results(self, data: D, model: Any, measures: Any) -> None:
        """Print the results as text."""

    @abstractmethod
    def data_record(self, data: D, model: Any) -> dict[str, Any]:
        """Return the sizes of the data and the model, for JSON and YAML."""

    def model_record(self, data: D, model: Any, measures: Any) -> dict[str, Any]:
        """Return the results of the training, for JSON and YAML."""
        return {"steps": printed.steps_record(model.summary.history)}

    def saved_model(self, data: D, model: Any) -> Any:
        """Return what ``--output`` gets: the model, or a pipeline with it."""
        return model

    @property
    def extra_files(self) -> dict[str, str | None]:
        """The paths of the files that the command writes in addition to the model, for JSON and YAML."""
        return {}

    def write_extra_files(self, model: Any) -> Iterator[str]:
        """Write ``extra_files``; yield a line of text after each file."""
        yield from ()

    def extra_plots(self, data: D, model: Any) -> dict[str, Callable[[str], Any]]:
        """Return the functions that draw further plots, by file name. A function gets the path of the plot."""
        return {}

    # All commands share the following methods.

    def list_of(self, option: str) -> tuple[str, ...]:
        """Return the names in an option's list; ``option`` is the option's name without dashes."""
        from ps2.algorithms.text.clicks import names_in

        text = getattr(self, option)
        try:
            return () if text is None else names_in(text)
        except ConfigError as error:
            raise ConfigError(f"--{option}: {error}") from error

    @property
    def training(self) -> str:
        """The name of the Spark application, and of the training in checkpoints."""
        return f"ps2 train {self.name}"

    def new_estimator(self, **params: Any) -> Any:
        """Return the estimator with the params of the command line, and ``params``.

        Raise ConfigError if the command line sets a param that the chosen estimator does not have.
        """
        from ps2 import algorithms

        if self.choice:
            value = getattr(self, self.choice)
            name = self.variants[value].estimator
            self.params = {param: self.params[param] for param in self.params if self._has_param(param, value)}
        else:
            name = self.estimator
        return getattr(algorithms, name)(**{**self.params, **params})._resumable(self.training)

    def _has_param(self, name: str, value: str) -> bool:
        """Return whether the estimator that ``value`` chooses has a param; raise the error of ``new_estimator``."""
        declared = {choice: settings_of(variant.settings).get(name) for choice, variant in self.variants.items()}
        values = [choice for choice, setting in declared.items() if setting is not None and setting.option is not None]
        context = click.get_current_context()
        if value not in values and context.get_parameter_source(name) is not ParameterSource.DEFAULT:
            flag = next(option.opts[0] for option in context.command.params if option.name == name)
            raise ConfigError(f"{flag}: expected --{self.choice} {' or '.join(values)}, got {value}")
        return value in values

    def train(self) -> None:
        """Train, print the results and save the model."""
        from ps2.cli.training.running import run_in_spark
        from ps2.run.spark.session import interruptible

        with interruptible() as interrupt:
            estimator = self.make_estimator()
            with naming_options():
                self.check_estimator(estimator)
            self.check_files()
            run_in_spark(
                self.training, self.run, interrupt, lambda spark, workers: self._train(estimator, spark, workers)
            )

    def _train(self, estimator: Any, spark: Any, workers: int) -> None:
        data = self.read(spark)
        if self.run.workers is not None or not self.chooses_workers(estimator):
            estimator.setNumWorkers(workers)
        with naming_options():
            model = self.fit(estimator, data)
        measures = self.measure(model, data)
        is_table = self.run.form == "table"
        # Print first: the training took long, and writing files can fail.
        if is_table:
            self.print_results(data, model, measures)
        else:
            print_data(self.record(data, model, measures), self.run.form)
        for line in self._write_files(data, model):
            if is_table:
                click.echo(line)

    def record(self, data: D, model: Any, measures: Any) -> dict[str, Any]:
        """Return all results, for JSON and YAML."""
        return {
            **self.data_record(data, model),
            "params": self.params,
            **self.model_record(data, model, measures),
            "output": self.run.output,
            **self.extra_files,
            "plots": list(self._plots(data, model)),
        }

    def _plots(self, data: D, model: Any) -> dict[str, Callable[[str], Any]]:
        """Return the functions that draw the plots, by path; none without --plots."""
        if self.run.plots is None:
            return {}
        # If a restored training had already finished, it has no steps and no curve.
        plots = {self.curve: model.summary.plot} if model.summary.history.steps else {}
        plots |= self.extra_plots(data, model)
        return {os.path.join(self.run.plots, name): plot for name, plot in plots.items()}

    def _write_files(self, data: D, model: Any) -> Iterator[str]:
        """Write the model, the extra files and the plots; yield a line of text after each file."""
        from ps2.algorithms.training.progress import log_activity
        from ps2.storage.files import reason

        output = self.run.output
        log_activity(f"saving {output}")
        saved = self.saved_model(data, model)
        saved.write().overwrite().save(output)
        loader = (
            f"ps2.algorithms.{self.loader or type(model).__name__}" if saved is model else "pyspark.ml.PipelineModel"
        )
        yield f"model saved in {output}: {loader}.load({output!r})"
        yield from self.write_extra_files(model)
        for path, plot in self._plots(data, model).items():
            try:
                plot(path)
            except OSError as error:
                raise RecoveryError(f"{path}: writing failed: {reason(error)}") from error
            yield f"wrote {path}"


def _indented(text: str, prefix: str = "") -> str:
    return "\n".join(f"  {prefix}{line}" for line in inspect.cleandoc(text).splitlines())
