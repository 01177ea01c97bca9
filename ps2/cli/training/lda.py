"""``ps2 train lda``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import click

from ps2.algorithms.topics.settings import LDASettings
from ps2.cli.output import print_table
from ps2.cli.training import printed
from ps2.cli.training.command import TrainingCommand
from ps2.text_tables import Column

if TYPE_CHECKING:
    from ps2.algorithms.text.documents import BagOfWords

# Params that only one optimizer has, or whose defaults depend on the optimizer. Their options have no default.
OPTIMIZER_PARAMS = (
    *("localBatches", "learningDecay", "learningOffset", "maxIter", "optimizeDocConcentration", "sampler"),
    *("staleness", "subsamplingRate", "sync", "via"),
)


@dataclass(frozen=True)
class Corpus:
    """The documents to train on, those of the test file, and the words by id from 0. None: there is no such file."""

    train: BagOfWords
    test: BagOfWords | None
    words: Sequence[str] | None


class LDACommand(TrainingCommand[Corpus]):
    """Find topics in documents."""

    vocab: str | None
    top: int
    name, estimator, settings, curve = "lda", "LDA", LDASettings, "likelihood.png"
    defaults: ClassVar = dict.fromkeys(OPTIMIZER_PARAMS)
    file_text = (
        "The file is a bag of words as in UCI's data sets: three lines with the numbers of documents, of words and of "
        'further lines, then lines "document word count" with ids from 1.'
    )
    file_options = (
        click.option("--input", required=True, metavar="FILE", help="Bag of words, folder or glob; can be .gz."),
        click.option("--test", metavar="FILE", help="Held-out documents, for the perplexity."),
        click.option("--vocab", metavar="FILE", help="The words, one per line  [default: print the numbers of words]."),
    )
    last_options = (
        click.option(
            "--top-words",
            "top",
            type=click.IntRange(1),
            default=10,
            show_default=True,
            help="Number of words to print per topic.",
        ),
    )
    examples = """
    --input docword.kos.txt.gz --vocab vocab.kos.txt --k 100 --output model
    --input docword.txt.gz --k 20 --iterations 300 --optimize-alpha --plots pictures --output model
    --input docword.txt --test docword.test.txt --optimizer online --batch 0.1 --output model -o json
    --input hdfs:///news/docword-* --k 1000 --sync rotation --servers 8 --master yarn --output hdfs:///model
    --input docword.txt --restore /shared/checkpoints --output model   continue after a kill
    """
    usage = """
    from ps2.algorithms import LDAModel, LDATopics
    LDAModel.load("model").transform(df)     df.features: vectors that count words; column 0 is word 1 of the file
    LDATopics.load("model").transform(X)     NumPy or scipy CSR, without Spark
    """

    @property
    def paths(self) -> list[str | None]:
        return [self.input, self.test, self.vocab]

    def check_estimator(self, estimator: Any) -> None:
        super().check_estimator(estimator)
        estimator._plan()

    def read(self, spark: Any) -> Corpus:
        from ps2.algorithms.text.documents import read, read_vocabulary

        train = read(spark, self.input)
        test = None if self.test is None else read(spark, self.test, train.vocabulary)
        words = None if self.vocab is None else read_vocabulary(spark, self.vocab, train.vocabulary)
        return Corpus(train, test, words)

    def chooses_workers(self, estimator: Any) -> bool:
        return estimator.getOptimizer() != "online"

    def fit(self, estimator: Any, data: Corpus) -> Any:
        return estimator.fit(data.train.frame)

    def measure(self, model: Any, data: Corpus) -> tuple[list[dict[str, Any]], float | None]:
        """Return the topics with their most probable words, the largest topic first, and the test file's perplexity."""
        perplexity = None if data.test is None else model.perplexity(data.test.frame, seed=self.params["seed"])
        sizes = model.topics.counts.sum(axis=0)
        topics = []
        for number, (ids, weights) in enumerate(model.topics.describeTopics(self.top)):
            words = [str(id + 1) if data.words is None else data.words[id] for id in ids]
            probabilities = dict(zip(words, map(float, weights), strict=True))
            topics.append({"topic": number, "share": float(sizes[number] / sizes.sum()), "words": probabilities})
        return sorted(topics, key=lambda topic: -topic["share"]), perplexity

    def print_results(self, data: Corpus, model: Any, measures: Any) -> None:
        topics, perplexity = measures
        columns = [Column("topic", right=True), Column("tokens", right=True), Column("likeliest words", folds=True)]
        rows = [(str(topic["topic"]), f"{topic['share']:.1%}", " ".join(topic["words"])) for topic in topics]
        print_table(columns, rows)
        click.echo()
        click.echo(f"{data.train.documents:,} documents, {data.train.tokens:,} tokens, {data.train.vocabulary:,} words")
        history = model.summary.history
        printed.print_history(history, f"iterations of {model.getOptimizer()}", self.run)
        if history.placement is not None:
            click.echo(f"via {history.placement}")
        if data.test is not None:
            click.echo(f"perplexity of the {data.test.documents:,} held-out documents: {perplexity:,.1f}")

    def data_record(self, data: Corpus, model: Any) -> dict[str, Any]:
        train = data.train
        return {"documents": train.documents, "tokens": train.tokens, "words": train.vocabulary}

    def model_record(self, data: Corpus, model: Any, measures: Any) -> dict[str, Any]:
        topics, perplexity = measures
        history = model.summary.history
        return {
            "iterations": printed.steps_record(history),
            "placement": None if history.placement is None else asdict(history.placement),
            "alpha": model.topics.alpha.tolist(),
            "topics": topics,
            "perplexity": perplexity,
        }
