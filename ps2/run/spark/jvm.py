"""Calls to Spark's JVM for pyspark.ml's own models. A client of Spark Connect has no JVM.

These calls use private members of pyspark (``_jvm``, ``_jsc``, ``_java_obj``, ...), which Spark may change.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ps2.errors import ConfigError
from ps2.run.spark.classic import active_context

if TYPE_CHECKING:
    from pyspark.ml.param import Params


def jvm_context(caller: str) -> Any:
    """Return the SparkContext; in a client of Spark Connect, raise ConfigError, which begins with ``caller``."""
    context = active_context()
    if context is None:
        raise ConfigError(
            f"{caller} needs Spark's JVM in this process, which a client of Spark Connect does not have: save the "
            "model, and load it in a program whose SparkSession is made without remote()"
        )
    return context


def io_error(spark_context: Any, error: Any) -> str | None:
    """Return class and message of the innermost java.io.IOException that caused a pyspark error; None: none did."""
    from py4j.java_gateway import is_instance_of

    java, message = getattr(error, "java_exception", None) or getattr(error, "_origin", None), None
    while java is not None:
        if is_instance_of(spark_context._gateway, java, "java.io.IOException"):
            message = f"{java.getClass().getSimpleName()}: {java.getMessage()}"
        java = java.getCause()
    return message


def silence_jvm_shutdown(spark_context: Any) -> None:
    """Prevent a thread of pyspark from printing a traceback when the JVM ends."""
    spark_context._accumulatorServer.handle_error = lambda request, address: None


def java_frame(frame: Any) -> Any:
    """Return the Java object of a DataFrame."""
    jvm_context("toPyspark")
    return frame._jdf


def evaluator_metrics(evaluator: Any, predictions: Any) -> Any:
    """Return the metrics (a Java object) of a pyspark evaluator for a DataFrame of predictions."""
    if active_context() is None:
        raise ConfigError(
            "the metrics of a summary need Spark's JVM in this process, which a client of Spark Connect does not have: "
            "give model.transform(df) to an evaluator of pyspark.ml.evaluation"
        )
    evaluator._transfer_params_to_java()
    return evaluator._java_obj.getMetrics(predictions._jdf)


def lda_model(spark: Any, topics: Any, alpha: Any, beta: float, gamma_shape: float) -> tuple[Any, Any]:
    """Return spark.mllib's LocalLDAModel and the session (Java objects). ``topics`` has the shape (words, topics)."""
    context = jvm_context("toPyspark")
    mllib = context._jvm.org.apache.spark.mllib
    matrix = mllib.linalg.Matrices.fromML(_to_java(context, topics))
    vector = mllib.linalg.Vectors.fromML(_to_java(context, alpha))
    return mllib.clustering.LocalLDAModel(matrix, vector, beta, gamma_shape), spark._jsparkSession


def kmeans_model(spark_context: Any, centres: Sequence[Any], distance: str, cost: float, iterations: int) -> Any:
    """Return spark.mllib's KMeansModel (a Java object)."""
    from pyspark.ml.linalg import DenseVector

    mllib = spark_context._jvm.org.apache.spark.mllib
    vectors = spark_context._gateway.new_array(mllib.linalg.Vector, len(centres))
    for index, centre in enumerate(centres):
        vectors[index] = mllib.linalg.Vectors.fromML(_to_java(spark_context, DenseVector(centre)))
    return mllib.clustering.KMeansModel(vectors, distance, cost, iterations)


def word2vec_model(spark_context: Any, rows: Mapping[str, int], vectors: bytes) -> Any:
    """Return spark.mllib's Word2VecModel (a Java object).

    ``rows``: the row of each word; ``vectors``: the bytes of a float32 array of shape (words, dim), row by row.
    """
    jvm = spark_context._jvm
    floats = _to_java(spark_context, array("f", vectors))
    scala_rows = jvm.scala.collection.JavaConverters.mapAsScalaMapConverter(_to_java(spark_context, rows)).asScala()
    # The implicit argument of toMap: evidence that the elements are pairs.
    are_pairs = getattr(getattr(jvm.scala, "Predef$"), "MODULE$")
    row_by_word = scala_rows.toMap(getattr(are_pairs, "$conforms")())
    return jvm.org.apache.spark.mllib.feature.Word2VecModel(row_by_word, floats)


def new_model(cls: type, uid: str, arguments: Sequence[Any], params: Params) -> Any:
    """Return a model of pyspark.ml, with the params and defaults of ``params`` that the model has.

    A name that pyspark.ml does not know, such as that of a solver, leaves its own default.
    ``arguments``: the arguments of the Java class's constructor after the uid.
    """
    from pyspark.ml.wrapper import JavaWrapper

    jvm_context("toPyspark")
    package = cls.__module__.replace("pyspark", "org.apache.spark")
    model = cls(JavaWrapper._new_java_obj(f"{package}.{cls.__name__}", uid, *arguments))

    def accepts(name: str, value: Any) -> bool:
        return not isinstance(value, str) or bool(model._java_obj.getParam(name).isValid().apply(value))

    for values, set_params in ((params._defaultParamMap, model._setDefault), (params._paramMap, model._set)):
        known = {param.name: value for param, value in values.items() if model.hasParam(param.name)}
        set_params(**{name: value for name, value in known.items() if accepts(name, value)})
    model._transfer_params_to_java()  # the model's evaluate() reads the params of the Java object
    return model


def _to_java(spark_context: Any, value: Any) -> Any:
    from pyspark.ml.common import _py2java

    return _py2java(spark_context, value)
