"""Clustering: pyspark.ml's KMeans and LDA, trained on a fleet of servers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
from pyspark.ml import Estimator, Model, clustering
from pyspark.ml.linalg import DenseMatrix, DenseVector
from pyspark.ml.param.shared import HasFeaturesCol, HasSeed
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import ArrayType, DoubleType, IntegerType, StringType, StructField, StructType

from ps2.algorithms.estimators.documents import Documents, survey_documents
from ps2.algorithms.estimators.estimator import FleetEstimator, Job
from ps2.algorithms.estimators.frames import check_frame
from ps2.algorithms.estimators.heads import SharesHead
from ps2.algorithms.estimators.models import FittedModel
from ps2.algorithms.estimators.params import setter
from ps2.algorithms.estimators.predict import with_predictions
from ps2.algorithms.estimators.scoring import FeatureScoring
from ps2.algorithms.estimators.summaries import HistorySummary
from ps2.algorithms.frame.placement import Work
from ps2.algorithms.public_names import exports
from ps2.algorithms.topics.files import read_topics
from ps2.algorithms.topics.ml.documents import Compute, Numbers, over_documents
from ps2.algorithms.topics.ml.params import LDAParams, LDASetters, options_of
from ps2.algorithms.topics.model import LDATopics, Seen, perplexity_of
from ps2.algorithms.topics.online import ONLINE_WORK, train_online
from ps2.algorithms.topics.options import FittedTopics, OnlineOptions, SamplingOptions, check_room
from ps2.algorithms.topics.sampling import train, work_of
from ps2.algorithms.training.faults import ColumnNames
from ps2.algorithms.training.only_worker import OnStep
from ps2.algorithms.training.record import TrainingHistory
from ps2.array_types import Float64s
from ps2.coordinator.context import PS2Context
from ps2.errors import InputError, UsageError
from ps2.plot_extra import PlotPath
from ps2.run.spark.backend_lookup import active_session, backend_of, with_python
from ps2.run.spark.jvm import lda_model
from ps2.server.memory import available_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from typing_extensions import Unpack

    from ps2.algorithms.clusters.estimator import KMeans as KMeans
    from ps2.algorithms.clusters.estimator import KMeansModel as KMeansModel
    from ps2.algorithms.estimators.keywords import clustering as keywords
else:
    __all__, __getattr__, __dir__ = exports(__name__)

log = logging.getLogger(__name__)

# The column of ``describeTopics`` that a vocabulary adds.
TERMS = StructField("terms", ArrayType(StringType(), containsNull=False), nullable=False)
# Its other columns, as in pyspark.ml.
DESCRIBED = StructType(
    [
        StructField("topic", IntegerType(), nullable=False),
        StructField("termIndices", ArrayType(IntegerType(), containsNull=False)),
        StructField("termWeights", ArrayType(DoubleType(), containsNull=False)),
    ]
)
# pyspark.ml draws the initial gamma of a document from this distribution.
GAMMA_SHAPE = 100.0


class LDA(FleetEstimator, LDASetters, Estimator["LDAModel"]):
    """Latent Dirichlet allocation: ``pyspark.ml.clustering.LDA`` on servers, by Gibbs sampling as well.

    Example::

        model = LDA(k=20, maxIter=200).fit(df)  # featuresCol: counts of words
        model.describeTopics().show()
    """

    _LOCAL_IS_DURABLE = True

    def __init__(self, **params: Unpack[keywords.LDA]) -> None:
        super().__init__(**params)

    def _plan(self) -> SamplingOptions | OnlineOptions:
        return options_of(self, self._name)

    def _survey(self, dataset: DataFrame, columns: ColumnNames) -> Documents:
        return survey_documents(dataset, columns)

    def _resolve(self, plan: SamplingOptions | OnlineOptions, survey: Documents) -> SamplingOptions | OnlineOptions:
        resolved = replace(plan, vocabulary=survey.dim)
        check_room(resolved, available_bytes())
        return resolved

    def _work(self, plan: SamplingOptions | OnlineOptions, survey: Documents) -> Work:
        return ONLINE_WORK if isinstance(plan, OnlineOptions) else work_of(plan, survey.rows, survey.tokens)

    def _with_rows(self, job: Job) -> SamplingOptions | OnlineOptions:
        plan: SamplingOptions | OnlineOptions = job.plan
        if isinstance(plan, OnlineOptions):
            return plan
        return replace(plan, via=job.placement.via, threads=job.placement.threads)

    def _steps(self, plan: SamplingOptions | OnlineOptions) -> int:
        return plan.iterations

    def _train(self, ps: PS2Context, job: Job, on_step: OnStep) -> FittedTopics:
        if isinstance(job.plan, OnlineOptions):
            return train_online(ps, job.table, job.plan, on_step)
        return train(ps, job.table, job.plan, job.survey.tokens, on_step)

    def _trained_model(self, trained: FittedTopics, job: Job) -> LDAModel:
        return LDAModel(LDATopics(trained.counts, trained.alpha, trained.beta, self._inference, self._seed))


class LDAModel(FittedModel, LDAParams, Model):
    """What ``LDA.fit`` returns."""

    setFeaturesCol = setter(HasFeaturesCol.featuresCol)
    setTopicDistributionCol = setter(LDAParams.topicDistributionCol)
    setSeed = setter(HasSeed.seed)
    setInference = setter(LDAParams.inference)

    def __repr__(self) -> str:
        return f"{type(self).__name__}: uid={self.uid}, k={self.topics.topics}, numFeatures={self.vocabSize()}"

    # -- topics ----------------------------------------------------------------------------------------------------

    @property
    def topics(self) -> LDATopics:
        """The trained topics as arrays, usable without Spark."""
        found: LDATopics = self._fitted
        how, seed = self._inference, self._seed
        if (found.inference, found.seed) != (how, seed):
            found = LDATopics(found.counts, found.alpha, found.beta, how, seed)
            self._fitted, self._shared = found, None
        return found

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
        """Return alpha for each topic: the fitted values if alpha was optimized, else the given ones."""
        return DenseVector(self.topics.alpha)

    def describeTopics(self, maxTermsPerTopic: int = 10, vocabulary: Sequence[str] | None = None) -> DataFrame:
        """Return the most likely words of each topic: columns topic, termIndices and termWeights.

        Args:
            maxTermsPerTopic: how many words of a topic, at most.
            vocabulary: the words, such as ``CountVectorizerModel.vocabulary``; with it, there is a column terms, too.

        Raises:
            ShapeError: the number of words is not the model's.
        """
        self.topics.check_vocabulary(vocabulary)
        rows = []
        for topic, (words, weights) in enumerate(self.topics.describeTopics(maxTermsPerTopic)):
            terms = [] if vocabulary is None else [[vocabulary[word] for word in words]]
            rows.append((topic, words.tolist(), weights.tolist(), *terms))
        columns = DESCRIBED if vocabulary is None else StructType([*DESCRIBED.fields, TERMS])
        return with_python(_session()).createDataFrame(rows, columns)

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

    # -- documents -------------------------------------------------------------------------------------------------

    def _transform(self, dataset: DataFrame) -> DataFrame:
        check_frame(dataset)
        name = self.getTopicDistributionCol()
        if not name:
            return dataset
        topics = self.topics
        share = self._share(backend_of(dataset))
        columns = ColumnNames(self._features, label=None)
        return with_predictions(dataset, columns, topics.dim, share, SharesHead(topics.topics), [(name, "raw")])

    def scoring(self) -> FeatureScoring:
        """Return how ``transform`` scores rows, as plain data, for scorers without Spark and servers."""
        topics = self.topics
        head, name = SharesHead(topics.topics), self.getTopicDistributionCol()
        outputs = ((name, "raw"),) if name else ()
        return FeatureScoring(f"{LDATopics.__module__}:LDATopics", topics.dim, False, self._features, head, outputs)

    def logLikelihood(self, dataset: DataFrame) -> float:
        """Return a lower bound of the documents' log-likelihood, as in pyspark.ml: see ``LDATopics.logLikelihood``."""
        return self._bound(dataset)[0]

    def logPerplexity(self, dataset: DataFrame) -> float:
        """Return minus ``logLikelihood`` per token, as in pyspark.ml: lower is better."""
        bound, tokens = self._bound(dataset)
        return -bound / tokens

    def perplexity(self, dataset: DataFrame, seed: int = 0) -> float:
        """Return the perplexity of held-out documents, by document completion: lower is better. See
        ``LDATopics.perplexity``.
        """

        def completed(topics: LDATopics, x: sp.csr_array) -> Numbers:
            return {"sums": topics.completed(x, seed)}

        score, tokens = self._summed(dataset, completed)
        return perplexity_of(score, tokens)

    def toPyLDAvis(self, dataset: DataFrame, vocabulary: Sequence[str] | None = None) -> dict[str, Any]:
        """Return the arguments of ``pyLDAvis.prepare``, by name; the topics of all documents come to the driver.

        See ``LDATopics.toPyLDAvis``.
        """

        def seen(topics: LDATopics, x: sp.csr_array) -> Numbers:
            found = topics.seen(x)
            return {"shares": found.shares.reshape(-1), "lengths": found.lengths, "frequency": found.frequency}

        topics, found = self.topics, self._computed(dataset, seen)
        if not found:
            raise InputError("expected documents to show, got an empty DataFrame")
        shares, lengths = (np.concatenate([numbers[name] for numbers in found]) for name in ("shares", "lengths"))
        frequency = np.sum([numbers["frequency"] for numbers in found], axis=0)
        return topics.vis(Seen(shares.reshape(-1, topics.topics), lengths, frequency), vocabulary)

    def _bound(self, dataset: DataFrame) -> tuple[float, float]:
        """Return the bound of the documents' log-likelihood, and their number of tokens."""

        def bound(topics: LDATopics, x: sp.csr_array) -> Numbers:
            return {"sums": (topics.bound(x), x.sum())}

        of_documents, tokens = self._summed(dataset, bound)
        if not tokens:
            raise InputError("expected documents with words, of which there is a likelihood; there is none")
        return of_documents + self.topics.bound_of_topics, tokens

    def _summed(self, dataset: DataFrame, compute: Compute) -> tuple[float, float]:
        """Return two sums over all documents."""
        sums = np.zeros(2)
        for numbers in self._computed(dataset, compute):
            sums += numbers["sums"]
        return float(sums[0]), float(sums[1])

    def _computed(self, dataset: DataFrame, compute: Compute) -> list[dict[str, Float64s]]:
        topics, columns = self.topics, ColumnNames(self._features, label=None)
        share: Callable[[], Any] = self._share(backend_of(dataset))
        return over_documents(dataset, columns, topics.dim, share, compute)

    # -- files, summaries, pyspark.ml ------------------------------------------------------------------------------

    def _write_content(self, url: str) -> Any:
        return self.topics.write(url)

    @classmethod
    def _read_content(cls, path: str, url: str, content: Any) -> LDATopics:
        return LDATopics(*read_topics(path, url, content))

    def _remember(self, dataset: DataFrame, history: TrainingHistory) -> None:
        self._summary = HistorySummary(history)

    def toPyspark(self) -> clustering.LocalLDAModel:
        """Return the same topics as pyspark.ml's model, which infers topics of new documents by variational Bayes.

        Raises:
            UsageError: there is one topic; pyspark.ml requires at least two.
        """
        spark, topics = _session(), self.topics
        if topics.topics < 2:
            raise UsageError("toPyspark: pyspark.ml's LDA has two topics at least, and this model has one")
        alpha = self.estimatedDocConcentration()
        local, session = lda_model(spark, self.topicsMatrix(), alpha, topics.beta, GAMMA_SHAPE)
        # The param of pyspark.ml accepts only its own optimizers.
        described = self.copy({self.optimizer: "online"})._setDefault(optimizer="online")
        return described._as_pyspark(clustering.LocalLDAModel, topics.dim, local, session)


# isinstance() says yes; a real subclass would have to wrap a Java object.
clustering.LocalLDAModel.register(LDAModel)


def _session() -> SparkSession:
    session: SparkSession = active_session()
    return session
