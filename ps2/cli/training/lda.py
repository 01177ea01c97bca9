"""``ps2 train lda``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click

from ps2.algorithms.topics.settings import LDASettings
from ps2.cli.output import print_data, print_table
from ps2.cli.training import printed
from ps2.cli.training.options import Setting, gathered, param_options, setting_options
from ps2.cli.training.running import check, in_spark, options_named, pictures, save_and_draw
from ps2.text_tables import Column

if TYPE_CHECKING:
    from ps2.algorithms.text.documents import BagOfWords

EPILOG = """\b
Examples:
  ps2 train lda --input docword.kos.txt.gz --vocab vocab.kos.txt --k 100 --output model
  ps2 train lda --input docword.txt.gz --k 20 --iterations 300 --optimize-alpha --plots pictures --output model
  ps2 train lda --input docword.txt --test docword.test.txt --optimizer online --batch 0.1 --output model -o json
  ps2 train lda --input hdfs:///news/docword-* --k 1000 --sync rotation --servers 8 --master yarn --output hdfs:///model
  ps2 train lda --input docword.txt --restore /shared/checkpoints --output model   continue after a kill

\b
Use the model:
  from ps2.algorithms import LDAModel, LDATopics
  LDAModel.load("model").transform(df)     df.features: vectors that count words; column 0 is word 1 of the file
  LDATopics.load("model").transform(X)     NumPy or scipy CSR, without Spark
"""
# What the training is called in checkpoints.
TRAINING = "ps2 train lda"
PICTURE = "likelihood.png"
# Parameters whose defaults depend on the optimizer, or that one optimizer has: without an option, they are not set.
DEPENDENT = (
    *("localBatches", "learningDecay", "learningOffset", "maxIter", "optimizeDocConcentration", "sampler"),
    *("staleness", "subsamplingRate", "sync", "via"),
)


@dataclass(frozen=True)
class Bags:
    """Documents.

    Attributes:
        input, test: any URL that Spark reads: a file, a folder or a glob of UCI's bag-of-words form.
        vocab: the words, one a line; None: they have numbers.
    """

    input: str
    test: str | None
    vocab: str | None


@dataclass(frozen=True)
class _Job:
    """What topics are asked.

    Attributes:
        top: words of a topic that are printed.
        params: of the estimator.
    """

    bags: Bags
    setting: Setting
    top: int
    params: dict[str, Any]


@dataclass(frozen=True)
class _Topic:
    """A topic.

    Attributes:
        share: of all tokens.
        words: the likeliest ones, each with its probability.
    """

    number: int
    share: float
    words: list[tuple[str, float]]


bags_options = gathered(
    Bags,
    "bags",
    [
        click.option("--input", required=True, metavar="FILE", help="Bag of words, folder or glob; .gz is fine."),
        click.option("--test", metavar="FILE", help="Held-out documents, for the perplexity."),
        click.option("--vocab", metavar="FILE", help="The words, one per line  [default: print their numbers]."),
    ],
)


@click.command(epilog=EPILOG)
@bags_options
@param_options(LDASettings, **dict.fromkeys(DEPENDENT))
@click.option(
    "--top-words",
    "top",
    type=click.IntRange(1),
    default=10,
    show_default=True,
    help="Number of words to print per topic.",
)
@setting_options
def lda(bags: Bags, setting: Setting, top: int, **params: Any) -> None:
    """Find topics in documents.

    The file has UCI's bag-of-words form: three lines with the numbers of documents, words and lines that follow, then
    lines "document word count", numbers from 1 on.
    """
    # All other options are named as the estimator's params.
    from ps2.algorithms.spark_session import interruptible

    params = {name: value for name, value in params.items() if value is not None}
    with interruptible() as interrupt:
        from ps2.algorithms import LDA

        job = _Job(bags, setting, top, params)
        estimator = LDA(**params)
        with options_named():
            estimator._check()
            estimator._plan()
        check((bags.input, bags.test, bags.vocab), setting)
        in_spark(TRAINING, setting, interrupt, lambda spark, workers: _train(job, estimator, spark, workers))


def _train(job: _Job, estimator: Any, spark: Any, workers: int) -> None:
    from ps2.algorithms.text.documents import read, read_vocabulary

    bags = job.bags
    found = read(spark, bags.input)
    held_out = None if bags.test is None else read(spark, bags.test, found.vocabulary)
    named = None if bags.vocab is None else read_vocabulary(spark, bags.vocab, found.vocabulary)
    # Without --workers, the estimator chooses between one worker and several.
    if job.setting.workers is not None or estimator.getOptimizer() == "online":
        estimator = estimator.setNumWorkers(workers)
    model = estimator._resumable(TRAINING).fit(found.frame)
    perplexity = None if held_out is None else model.perplexity(held_out.frame, seed=job.params["seed"])
    topics = _topics(model, job.top, named)
    is_table = job.setting.form == "table"
    # Print first: the training took long, and writing files may fail.
    if is_table:
        _print_tables(job, found, model, topics)
        if held_out is not None:
            click.echo(f"perplexity of the {held_out.documents:,} documents held out: {perplexity:,.1f}")
    else:
        print_data(_record(job, found, model, topics, perplexity), job.setting.form)
    save_and_draw(model, job.setting, PICTURE)


def _topics(model: Any, top: int, named: Sequence[str] | None) -> list[_Topic]:
    """Return all topics, the one with most tokens first."""
    sizes = model.topics.counts.sum(axis=0)
    described = model.topics.describeTopics(top)
    topics = [
        _Topic(
            number,
            float(sizes[number] / sizes.sum()),
            [(_word(int(at), named), float(weight)) for at, weight in zip(words, weights, strict=True)],
        )
        for number, (words, weights) in enumerate(described)
    ]
    return sorted(topics, key=lambda topic: -topic.share)


def _word(at: int, named: Sequence[str] | None) -> str:
    return str(at + 1) if named is None else named[at]


def _print_tables(job: _Job, found: BagOfWords, model: Any, topics: Sequence[_Topic]) -> None:
    columns = [Column("topic", right=True), Column("tokens", right=True), Column("likeliest words", folds=True)]
    rows = [(str(topic.number), f"{topic.share:.1%}", " ".join(word for word, _ in topic.words)) for topic in topics]
    print_table(columns, rows)
    click.echo()
    click.echo(f"{found.documents:,} documents, {found.tokens:,} tokens, {found.vocabulary:,} words")
    history = model.summary.history
    printed.print_pace(history, f"iterations of {model.getOptimizer()}", job.setting)
    printed.print_steps(history)
    if history.placement is not None:
        click.echo(f"via {history.placement}")


def _record(
    job: _Job, found: BagOfWords, model: Any, topics: Sequence[_Topic], perplexity: float | None
) -> dict[str, Any]:
    """Return what a program may want to know of the run."""
    history = model.summary.history
    return {
        "documents": found.documents,
        "tokens": found.tokens,
        "words": found.vocabulary,
        "params": job.params,
        "iterations": printed.steps_record(history),
        "placement": None if history.placement is None else asdict(history.placement),
        "alpha": model.topics.alpha.tolist(),
        "topics": [{"topic": each.number, "share": each.share, "words": dict(each.words)} for each in topics],
        "perplexity": perplexity,
        "output": job.setting.output,
        "plots": list(pictures(model, job.setting, PICTURE)),
    }
