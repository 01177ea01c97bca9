"""A command of ``ps2 train``, from its options to the saved model."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from types import MappingProxyType
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import click

from ps2.algorithms.frame.settings import Settings
from ps2.cli.options import Decorator, add_options
from ps2.cli.output import print_data
from ps2.cli.training import printed
from ps2.cli.training.options import RUN_OPTIONS, RunOptions, options_named, param_options
from ps2.errors import RecoveryError

D = TypeVar("D")

NOTHING: Mapping[str, Any] = MappingProxyType({})


class TrainAndTest(NamedTuple):
    """Tables of rows; ``test`` None: there is no test file."""

    train: Any
    test: Any


class TrainingCommand(Generic[D]):
    """A command of ``ps2 train``. A subclass declares it; an object is one run, on data of the type D.

    The subclass's docstring is the command's help. An option becomes the attribute that the class annotates with its
    name, or one of the options ``run``, which all commands have; every other option is a param.

    Attributes:
        name: the command's name.
        estimator: the estimator's name in ``ps2.algorithms``.
        settings: the estimator's settings; each one that has an option becomes an option.
        defaults: the command's defaults where they are not those of the settings; None: the param is not set.
        other_names: names, in the help of options, of params that have no option of their own.
        file_text: the paragraph of the help about the input file.
        examples: options of good examples, one example a line.
        usage: lines of Python that use the model.
        file_options, own_options: options before and after those of the settings.
        loader: the class in ``ps2.algorithms`` that loads the model without Spark; "": the model's own class.
        curve: the file name of the plot of the objective.
        names_plots: whether the results name the plots.
        input, test: any URL that Spark reads: a file, a folder or a glob; ``test`` None: there is no test file.
        run: the options that all commands have.
        params: the values of the params that are set.
        paths: the paths of the files to read; None: there is no such file.
    """

    name: ClassVar[str]
    estimator: ClassVar[str]
    settings: ClassVar[type[Settings]]
    defaults: ClassVar[Mapping[str, Any]] = NOTHING
    other_names: ClassVar[Mapping[str, str]] = NOTHING
    file_text: ClassVar[str]
    examples: ClassVar[str]
    usage: ClassVar[str]
    file_options: ClassVar[Sequence[Decorator]]
    own_options: ClassVar[Sequence[Decorator]] = ()
    loader: ClassVar[str] = ""
    curve: ClassVar[str] = "loss.png"
    input: str
    test: str | None = None

    def __init__(self, run: RunOptions, params: dict[str, Any], own: dict[str, Any]) -> None:
        self.run, self.params = run, params
        vars(self).update(own)

    @classmethod
    def command(cls) -> click.Command:
        """Return the command for ``ps2 train``."""

        def call(**values: Any) -> None:
            run = RunOptions(**{field.name: values.pop(field.name) for field in fields(RunOptions)})
            attributes = {name for base in cls.__mro__ for name in inspect.get_annotations(base)}
            own = {name: values.pop(name) for name in attributes & values.keys()}
            cls(run, {name: value for name, value in values.items() if value is not None}, own).train()

        settings = param_options(cls.settings, cls.defaults, cls.other_names)
        options = [*cls.file_options, *settings, *cls.own_options, *RUN_OPTIONS]
        text = f"{inspect.cleandoc(str(cls.__doc__))}\n\n{cls.file_text}"
        examples = _indented(cls.examples, f"ps2 train {cls.name} ")
        epilog = f"\b\nExamples:\n{examples}\n\n\b\nUse the model:\n{_indented(cls.usage)}"
        return click.command(cls.name, help=text, epilog=epilog)(add_options(call, options))

    # What a command may do in its own way.

    @property
    def names_plots(self) -> bool:
        return True

    @property
    def paths(self) -> list[str | None]:
        return [self.input, self.test]

    def make_estimator(self) -> Any:
        """Return the estimator; raise ConfigError for own options that contradict params."""
        return self.new_estimator(self.estimator)

    def check_estimator(self, estimator: Any) -> None:
        """Raise ConfigError for params that contradict each other."""
        estimator._check()

    def check_files(self) -> None:
        """Raise what is wrong with files, and with ``run``, as far as it shows without Spark."""
        from ps2.algorithms.text.paths import check_local

        for path in filter(None, self.paths):
            check_local(path)
        self.run.check()

    def read(self, spark: Any) -> D:
        """Read the files."""
        raise NotImplementedError

    def chooses_workers(self, estimator: Any) -> bool:
        """Return whether the estimator chooses the number of workers if no option does."""
        return False

    def fit(self, estimator: Any, data: D) -> Any:
        """Train; return the model."""
        raise NotImplementedError

    def measure(self, model: Any, data: D) -> Any:
        """Return measures of the model, for the results."""
        return None

    def print_results(self, data: D, model: Any, measures: Any) -> None:
        """Print the results for people."""
        raise NotImplementedError

    def data_record(self, data: D, model: Any) -> dict[str, Any]:
        """Return the sizes of the data and the model, for programs."""
        raise NotImplementedError

    def model_record(self, data: D, model: Any, measures: Any) -> dict[str, Any]:
        """Return the results, for programs."""
        return {"steps": printed.steps_record(model.summary.history)}

    @property
    def more_files(self) -> dict[str, str | None]:
        """The files that the command writes beside the model, for programs."""
        return {}

    def write_more_files(self, model: Any) -> Iterator[str]:
        """Write the files beside the model; yield a line for people after each."""
        yield from ()

    def more_plots(self, data: D, model: Any) -> dict[str, Callable[[str], Any]]:
        """Return functions that draw the command's own plots, by file name; each takes the path."""
        return {}

    # What all commands do.

    @property
    def training(self) -> str:
        """The name of the Spark application, and of the training in checkpoints."""
        return f"ps2 train {self.name}"

    def new_estimator(self, name: str, **params: Any) -> Any:
        """Return an estimator of ``ps2.algorithms`` with the params of the command, and others."""
        from ps2 import algorithms

        return getattr(algorithms, name)(**{**self.params, **params})._resumable(self.training)

    def train(self) -> None:
        """Train, print the results and save the model."""
        from ps2.algorithms.spark_session import interruptible
        from ps2.cli.training.running import in_spark

        with interruptible() as interrupt:
            estimator = self.make_estimator()
            with options_named():
                self.check_estimator(estimator)
            self.check_files()
            in_spark(self.training, self.run, interrupt, lambda spark, workers: self._train(estimator, spark, workers))

    def _train(self, estimator: Any, spark: Any, workers: int) -> None:
        data = self.read(spark)
        if self.run.workers is not None or not self.chooses_workers(estimator):
            estimator.setNumWorkers(workers)
        with options_named():
            model = self.fit(estimator, data)
        measures = self.measure(model, data)
        is_table = self.run.form == "table"
        # Print first: the training took long, and writing files may fail.
        if is_table:
            self.print_results(data, model, measures)
        else:
            print_data(self._record(data, model, measures), self.run.form)
        for line in self._write_files(data, model):
            if is_table:
                click.echo(line)

    def _record(self, data: D, model: Any, measures: Any) -> dict[str, Any]:
        return {
            **self.data_record(data, model),
            "params": self.params,
            **self.model_record(data, model, measures),
            "output": self.run.output,
            **self.more_files,
            **({"plots": list(self._plots(data, model))} if self.names_plots else {}),
        }

    def _plots(self, data: D, model: Any) -> dict[str, Callable[[str], Any]]:
        """Return functions that draw the requested plots, by path."""
        if self.run.plots is None:
            return {}
        # A training that was restored may have had all of its steps.
        plots = {self.curve: model.summary.plot} if model.summary.history.steps else {}
        plots |= self.more_plots(data, model)
        return {os.path.join(self.run.plots, name): plot for name, plot in plots.items()}

    def _write_files(self, data: D, model: Any) -> Iterator[str]:
        """Write the model, and the files beside it; yield a line for people after each.

        Raises:
            RecoveryError: the file system refuses a plot.
        """
        from ps2.algorithms.training.progress import say
        from ps2.storage.files import reason

        output = self.run.output
        say(f"saving {output}")
        model.write().overwrite().save(output)
        yield f"model saved in {output}: ps2.algorithms.{self.loader or type(model).__name__}.load({output!r})"
        yield from self.write_more_files(model)
        for path, plot in self._plots(data, model).items():
            try:
                plot(path)
            except OSError as error:
                raise RecoveryError(f"{path}: writing failed: {reason(error)}") from error
            if self.names_plots:
                yield f"wrote {path}"


def _indented(text: str, begin: str = "") -> str:
    return "\n".join(f"  {begin}{line}" for line in inspect.cleandoc(text).splitlines())
