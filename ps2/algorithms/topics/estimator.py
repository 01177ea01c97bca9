"""``LDA`` and ``LDAModel``, the public estimator and model of topics."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import scipy.sparse as sp
from pyspark.ml import Estimator, Model, clustering
from pyspark.ml.linalg import DenseMatrix, DenseVector
from pyspark.sql import DataFrame
from pyspark.sql.types import ArrayType, DoubleType, IntegerType, StringType, StructField, StructType

from ps2.algorithms.frame.estimator import FleetEstimator, Job
from ps2.algorithms.frame.heads import SharesHead
from ps2.algorithms.frame.models import FeatureModel
from ps2.algorithms.frame.tables import check_columns, column, known_dim, names_of
from ps2.algorithms.frame.unlabelled import Documents, survey_documents
from ps2.algorithms.topics.model import LDATopics, perplexity_from
from ps2.algorithms.topics.online import OnlineProgram
from ps2.algorithms.topics.plan import OnlinePlan, SamplingPlan
from ps2.algorithms.topics.sampling import SamplingProgram
from ps2.algorithms.topics.settings import LDASettings, resolved_inference
from ps2.algorithms.training.faults import ColumnNames, Form, error_of
from ps2.algorithms.training.only_worker import OnStep
from ps2.algorithms.training.reading import read
from ps2.algorithms.training.record import Trained
from ps2.array_types import Float64s
from ps2.coordinator.context import PS2Context
from ps2.errors import ConfigError, InputError, UsageError
from ps2.plot_extra import PlotPath
from ps2.run.spark.backend_lookup import active_session, backend_of, with_python
from ps2.run.spark.frames import map_in_arrow
from ps2.run.spark.jvm import lda_model
from ps2.server.memory import available_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

log = logging.getLogger(__name__)

# Arrays or single numbers by name, and a function that computes them from topics and documents.
Results = Mapping[str, npt.ArrayLike]
Compute = Callable[[LDATopics, sp.csr_array], Results]

# The column that ``describeTopics`` adds for a vocabulary.
TERMS = StructField("terms", ArrayType(StringType(), containsNull=False), nullable=False)
# The other columns of ``describeTopics``, as in pyspark.ml.
DESCRIBED = StructType(
    [
        StructField("topic", IntegerType(), nullable=False),
        StructField("termIndices", ArrayType(IntegerType(), containsNull=False)),
        StructField("termWeights", ArrayType(DoubleType(), containsNull=False)),
    ]
)
# The shape of the gamma distribution from which pyspark.ml draws a document's initial gamma.
GAMMA_SHAPE = 100.0


class LDAModel(LDASettings, FeatureModel, Model):
    """A trained ``LDA``."""

    __module__ = "ps2.algorithms.clustering"
    _ARRAYS = LDATopics

    def _shown_values(self) -> dict[str, Any]:
        return {"k": self.topics.topics}

    @property
    def topics(self) -> LDATopics:
        """The trained topics as arrays, usable without Spark."""
        topics: LDATopics = self._fitted
        inference, seed = resolved_inference(self.getInference(), self.getOptimizer()), self._seed
        if (topics.inference, topics.seed) != (inference, seed):
            topics = LDATopics(topics.counts, topics.alpha, topics.beta, inference, seed)
            self._fitted, self._shared = topics, None
        return topics

    @property
    def _predictor(self) -> LDATopics:
        return self.topics

    def _write_content(self, url: str) -> dict[str, Any]:
        return self.topics.write(url)

    def isDistributed(self) -> bool:
        """Whether the topics are in an RDD; always False."""
        return False

    def vocabSize(self) -> int:
        """Return the number of words."""
        return self.topics.dim

    def topicsMatrix(self) -> DenseMatrix:
        """Return the topics, a matrix of shape (words, topics): tokens of each word in each topic, plus beta."""
        topics = self.topics
        weights = topics.counts + topics.beta
        return DenseMatrix(topics.dim, topics.topics, weights.reshape(-1, order="F"))

    def estimatedDocConcentration(self) -> DenseVector:
        """Return alpha of each topic: the fitted values if alpha was optimized, else the initial values."""
        return DenseVector(self.topics.alpha)

    def describeTopics(self, maxTermsPerTopic: int = 10, vocabulary: Sequence[str] | None = None) -> DataFrame:
        """Return the most likely words of each topic: columns topic, termIndices and termWeights.

        Args:
            maxTermsPerTopic: the maximum number of words of a topic.
            vocabulary: the words, such as ``CountVectorizerModel.vocabulary``; the result then has a column terms.

        Raises:
            ShapeError: the number of words is not the model's.
        """
        self.topics.check_vocabulary(vocabulary)
        rows = []
        for topic, (words, weights) in enumerate(self.topics.describeTopics(maxTermsPerTopic)):
            terms = [] if vocabulary is None else [[vocabulary[word] for word in words]]
            rows.append((topic, words.tolist(), weights.tolist(), *terms))
        columns = DESCRIBED if vocabulary is None else StructType([*DESCRIBED.fields, TERMS])
        return with_python(active_session()).createDataFrame(rows, columns)

    def plotTopics(
        self,
        path: PlotPath = None,
        maxTermsPerTopic: int = 10,
        vocabulary: Sequence[str] | None = None,
        topics: Sequence[int] | None = None,
        *,
        ax: Axes | None = None,
    ) -> Axes:
        """Plot the most likely words of topics as bars, a panel for each topic; see ``LDATopics.plotTopics``."""
        return self.topics.plotTopics(path, maxTermsPerTopic, vocabulary, topics, ax=ax)

    def _head(self) -> SharesHead:
        return SharesHead(self.topics.topics)

    def _outputs(self) -> list[tuple[str, str]]:
        return [(self.getTopicDistributionCol(), "raw")]

    def logLikelihood(self, dataset: DataFrame) -> float:
        """Return a lower bound of the documents' log-likelihood, as in pyspark.ml: see ``LDATopics.logLikelihood``."""
        return self._bound(dataset)[0]

    def logPerplexity(self, dataset: DataFrame) -> float:
        """Return minus ``logLikelihood`` per token, as in pyspark.ml: lower is better."""
        bound, tokens = self._bound(dataset)
        return -bound / tokens

    def perplexity(self, dataset: DataFrame, seed: int = 0) -> float:
        """Return held-out documents' perplexity, by document completion (``LDATopics.perplexity``): lower is better."""

        def score_and_tokens(topics: LDATopics, x: sp.csr_array) -> Results:
            return {"sums": topics.completed(x, seed)}

        score, tokens = self._sum_over_documents(dataset, score_and_tokens)
        return perplexity_from(score, tokens)

    def toPyLDAvis(self, dataset: DataFrame, vocabulary: Sequence[str] | None = None) -> dict[str, Any]:
        """Return ``pyLDAvis.prepare``'s arguments (``LDATopics.toPyLDAvis``); the driver collects documents' topics."""

        def vis_data(topics: LDATopics, x: sp.csr_array) -> Results:
            theta, lengths, frequency = topics.seen(x)
            return {"theta": theta.reshape(-1), "lengths": lengths, "frequency": frequency}

        topics, batches = self.topics, self._compute_by_batch(dataset, vis_data)
        if not batches:
            raise InputError("expected at least one document, got an empty DataFrame")
        theta, lengths = (np.concatenate([batch[name] for batch in batches]) for name in ("theta", "lengths"))
        frequency = np.sum([batch["frequency"] for batch in batches], axis=0)
        return topics.vis((theta.reshape(-1, topics.topics), lengths, frequency), vocabulary)

    def _bound(self, dataset: DataFrame) -> tuple[float, float]:
        """Return the bound of the documents' log-likelihood, and their number of tokens."""

        def bound_and_tokens(topics: LDATopics, x: sp.csr_array) -> Results:
            return {"sums": (topics.bound(x), x.sum())}

        documents_bound, tokens = self._sum_over_documents(dataset, bound_and_tokens)
        if not tokens:
            raise InputError("the likelihood needs at least one document with words, got none")
        return documents_bound + self.topics.bound_of_topics, tokens

    def _sum_over_documents(self, dataset: DataFrame, compute: Compute) -> tuple[float, float]:
        """Return the two numbers "sums" of ``compute``, added up over all documents."""
        sums = np.zeros(2)
        for results in self._compute_by_batch(dataset, compute):
            sums += results["sums"]
        return float(sums[0]), float(sums[1])

    def _compute_by_batch(self, dataset: DataFrame, compute: Compute) -> list[dict[str, Float64s]]:
        """Call ``compute`` in tasks for batches of all documents; return the results of each batch, in order.

        Raises:
            InputError: there is no such column, or its size differs. Faults within rows raise an error of Spark.
        """
        vocabulary, columns = self.topics.dim, ColumnNames(self._features, label=None)
        load_topics: Callable[[], LDATopics] = self._share(backend_of(dataset))
        check_columns(dataset, columns)
        dim = known_dim(dataset, columns.features)
        if dim not in (None, vocabulary):
            raise InputError(
                f"column {columns.shown('features')}: expected {vocabulary} words as in training, got {dim}"
            )

        def compute_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            topics, form = load_topics(), Form(vocabulary, counts=True)
            for batch in batches:
                reading = read([batch], columns, form)
                if error := error_of(reading.faults[None], columns, form):
                    raise error
                rows = reading.training
                indices = rows.keys.astype(np.int32)[rows.x.indices]
                x = sp.csr_array((rows.x.data, indices, rows.x.indptr), shape=(len(rows), vocabulary))
                lists = {name: np.atleast_1d(result).tolist() for name, result in compute(topics, x).items()}
                yield pa.RecordBatch.from_pydict({"names": [list(lists)], "results": [list(lists.values())]})

        schema = "names array<string>, results array<array<double>>"
        features = with_python(dataset.select(*map(column, names_of(columns))))
        rows = map_in_arrow(features, compute_batches, schema).collect()
        return [dict(zip(row["names"], map(np.array, row["results"]), strict=True)) for row in rows]

    def toPyspark(self) -> clustering.LocalLDAModel:
        """Return the same topics as pyspark.ml's model, which infers topics of new documents by variational Bayes.

        Raises:
            UsageError: there is one topic; pyspark.ml requires at least two.
        """
        topics = self.topics
        if topics.topics < 2:
            raise UsageError("toPyspark: pyspark.ml's LDA has at least two topics, and this model has one")
        alpha = self.estimatedDocConcentration()
        local, session = lda_model(active_session(), self.topicsMatrix(), alpha, topics.beta, GAMMA_SHAPE)
        # The param of pyspark.ml accepts only its own optimizers.
        online_copy = self.copy({self.optimizer: "online"})._setDefault(optimizer="online")
        return online_copy._as_pyspark(clustering.LocalLDAModel, topics.dim, local, session)


# isinstance() accepts an LDAModel. It cannot be a real subclass, which would have to wrap a Java object.
clustering.LocalLDAModel.register(LDAModel)


class LDA(LDASettings, FleetEstimator, Estimator[LDAModel]):
    """Latent Dirichlet allocation on servers, by Gibbs sampling or, as in pyspark.ml, online variational Bayes.

    Example::

        model = LDA(k=20, maxIter=200).fit(df)  # featuresCol: counts of words
        model.describeTopics().show()
    """

    __module__ = "ps2.algorithms.clustering"
    _LOCAL_IS_DURABLE, _MODEL = True, LDAModel

    def _plan(self) -> SamplingPlan | OnlinePlan:
        settings = self._values(LDASettings)
        is_online = settings.optimizer == "online"
        if self.isSet("localBatches") and not (is_online and settings.sync == "average"):
            raise ConfigError("localBatches: only optimizer 'online' with sync 'average' takes local batches")
        if self.isSet("staleness") and (is_online or settings.sync != "ssp"):
            raise ConfigError("staleness: only optimizer 'cgs' with sync 'ssp' takes a staleness")
        if settings.optimizer == "em":
            log.warning("optimizer 'em': topics are found by collapsed Gibbs sampling, as with 'cgs', not by EM")
        return (OnlinePlan if is_online else SamplingPlan)(settings=settings, name=self._name)

    def _survey(self, dataset: DataFrame, columns: ColumnNames) -> Documents:
        return survey_documents(dataset, columns)

    def _resolve(self, plan: SamplingPlan | OnlinePlan, survey: Documents) -> SamplingPlan | OnlinePlan:
        resolved = replace(plan, vocabulary=survey.dim)
        if isinstance(resolved, SamplingPlan):
            resolved = replace(resolved, tokens=survey.tokens)
        resolved.check_memory(available_bytes())
        return resolved

    def _with_rows(self, job: Job) -> SamplingPlan | OnlinePlan:
        plan: SamplingPlan | OnlinePlan = job.plan
        if isinstance(plan, OnlinePlan):
            return plan
        is_local = job.placement.via == "local"
        return replace(plan, is_local=is_local, threads=job.placement.threads, workers=job.table.workers)

    def _train(self, ps: PS2Context, job: Job, on_step: OnStep) -> Trained[LDATopics]:
        program = OnlineProgram if isinstance(job.plan, OnlinePlan) else SamplingProgram
        trained: Trained[LDATopics] = program.train(ps, job.table, job.plan, on_step)
        return trained
