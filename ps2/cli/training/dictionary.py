"""``ps2 train dictionary``."""

from __future__ import annotations

from typing import Any

import click

from ps2.algorithms.dictionary.settings import DictionarySettings
from ps2.cli.output import print_data
from ps2.cli.training import printed
from ps2.cli.training.file_training import FileTraining
from ps2.cli.training.options import Files, Setting, param_options, setting_options
from ps2.cli.training.running import Read

EPILOG = """\b
Examples:
  ps2 train dictionary --input patches.libsvm.gz --k 100 --alpha 0.5 --output model
  ps2 train dictionary --input hdfs:///pages/part-* --features 20000 --k 200 --master yarn --output hdfs:///model

\b
Use the model:
  from ps2.algorithms import SparseCoder
  SparseCoder.load("model").transform(x)   the code of each row of an array or a scipy CSR matrix
"""
# What the training is called in checkpoints.
TRAINING = "ps2 train dictionary"


@click.command(epilog=EPILOG)
@click.option("--input", required=True, metavar="PATH", help="LIBSVM file, folder or glob; labels are ignored.")
@click.option(
    "--features", type=click.IntRange(1), metavar="N", help="Number of features.  [default: the largest index]"
)
@param_options(DictionarySettings)
@setting_options
def dictionary(input: str, features: int | None, setting: Setting, **params: Any) -> None:
    """Learn atoms of which each row is a sparse combination.

    The file has lines "label index:value ...", indices ascending from 1.
    """
    # All other options are named as the estimator's params.

    def estimator() -> Any:
        from ps2.algorithms import DictionaryLearning

        return DictionaryLearning(**params)

    def show(found: Read, model: Any) -> None:
        history = model.summary.history
        if setting.form == "table":
            printed.print_pace(history, "updates of the dictionary", setting)
            printed.print_steps(history)
            return
        steps = printed.steps_record(history)
        sizes = {"rows": len(found.train), "features": found.features}
        print_data({**sizes, "params": params, "steps": steps, "output": setting.output}, setting.form)

    file = Files(input, None, features)
    FileTraining(TRAINING, file, setting, estimator, lambda found: found.train.frame, show, "SparseCoder").run()
