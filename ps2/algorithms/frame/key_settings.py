"""Parameters of models of keys: columns that are hashed to keys, and the learning from keys (docs/keys.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ps2.algorithms.frame.settings import Flexible, Setting, Settings, getter, param, setter
from ps2.algorithms.frame.shared_settings import FleetSettings, HeldOutSettings, WeightSettings

# The separator of the columns of a cross, as in "user:ad"; the default column of keys.
CROSS, KEYS = ":", "keys"
# The types of a column of categories, for messages.
CATEGORIES = "strings, integers or booleans, or arrays of them"


def bucket_columns(value: Any) -> dict[str, list[float] | None]:
    """Convert column names, or a dict from name to bounds, to a dict. Bounds of None: logarithmic intervals."""
    from pyspark.ml.param import TypeConverters

    if not isinstance(value, Mapping):
        return dict.fromkeys(TypeConverters.toListString(value))
    names = map(TypeConverters.toString, value)
    all_bounds = (None if bounds is None else TypeConverters.toListFloat(bounds) for bounds in value.values())
    return dict(zip(names, all_bounds, strict=True))


def crossed_columns(value: Any) -> list[list[str]]:
    """Convert crosses, each "a:b" or a list of names, to lists of names."""
    from pyspark.ml.param import TypeConverters

    from ps2.data.key_fields import suggested_cross

    if isinstance(value, str) or not isinstance(value, Sequence):
        raise TypeError(f'crosses: expected a list such as ["user:ad"] or [["user", "ad"]], got {value!r}')
    for cross in value:
        if isinstance(cross, str) and CROSS not in cross:
            raise TypeError(f"crosses: expected columns such as {suggested_cross(cross)}, got {cross!r}")
    return [TypeConverters.toListString(cross.split(CROSS) if isinstance(cross, str) else cross) for cross in value]


class HashedColumnSettings(Settings):
    """The columns whose values are hashed to keys."""

    categoricalCols: Flexible[list[str], Sequence[str]] = param(
        [],
        f"the columns of categories: {CATEGORIES}; each value becomes a key, without a vocabulary",
        type=list[str],
        option=None,
        in_model=True,
    )
    numericCols: Flexible[list[str], Sequence[str]] = param(
        [],
        "the columns of numbers; each column is one key, whose values are the column's numbers",
        type=list[str],
        option=None,
        in_model=True,
    )
    bucketCols: Flexible[dict[str, list[float] | None], Sequence[str] | Mapping[str, Any]] = param(
        {},
        "the columns of numbers of which each interval is a key: names (logarithmic intervals), or a dict from name to "
        "ascending bounds (None: logarithmic intervals)",
        type=bucket_columns,
        option=None,
        in_model=True,
    )
    bucketBase: Setting[float] = param(
        2.0, "the base of logarithmic intervals: their bounds are 0 and +-(base^i - 1)", option=None, in_model=True
    )
    crosses: Flexible[list[list[str]], Sequence[str | Sequence[str]]] = param(
        [],
        'the combinations of columns: "user:ad", or a list of names; each combination of values is a key; columns in '
        "bucketCols are combined by their intervals",
        type=crossed_columns,
        option=None,
        in_model=True,
    )
    timeZone: Setting[str | None] = param(
        None,
        "the time zone of columns such as 'hour(t)', a region or an offset such as '+02:00'; not set: that of Spark's "
        "session (spark.sql.session.timeZone) in which the model is made",
        type=str,
        option=None,
        in_model=True,
    )
    hashSeed: Setting[int] = param(0, "the seed of the keys' hash", option=None, in_model=True)

    getCategoricalCols, setCategoricalCols = getter(categoricalCols), setter(categoricalCols)
    getNumericCols, setNumericCols = getter(numericCols), setter(numericCols)
    getBucketCols, setBucketCols = getter(bucketCols), setter(bucketCols)
    getBucketBase, setBucketBase = getter(bucketBase), setter(bucketBase)
    getCrosses, setCrosses = getter(crosses), setter(crosses)
    getTimeZone, setTimeZone = getter(timeZone), setter(timeZone)
    getHashSeed, setHashSeed = getter(hashSeed), setter(hashSeed)


class KeySettings(HashedColumnSettings):
    """The columns to hash, or a column of keys."""

    keysCol: Setting[str | None] = param(
        None,
        "the column of arrays of keys, integers in [0, 2^63), in addition to hashed columns; not set: "
        f"{KEYS!r} if no columns are hashed, else no such column",
        type=str,
        option=None,
        in_model=True,
    )
    valuesCol: Setting[str | None] = param(
        None, "the column of arrays of the keys' values; not set: each value is 1", type=str, option=None, in_model=True
    )
    keysPerRow: Setting[int | None] = param(
        None,
        "the number of keys in each array, of which each position is a field; not set: any number, in a single field",
        type=int,
        option=None,
        in_model=True,
    )

    getKeysCol, setKeysCol = getter(keysCol), setter(keysCol)
    getValuesCol, setValuesCol = getter(valuesCol), setter(valuesCol)
    getKeysPerRow, setKeysPerRow = getter(keysPerRow), setter(keysPerRow)


class LearningSettings(KeySettings, FleetSettings, WeightSettings, HeldOutSettings):
    """The training of the weights of keys, and the admission, expiry and maximum number of keys."""

    labelCol: Setting[str] = param("label", "the column of the labels, 0 or 1", option=None)
    predictionCol: Setting[str] = param("prediction", "the column of the predictions", option=None, in_model=True)
    maxIter: Setting[int] = param(1, "the number of passes over the rows", at_least=1, option="epochs")
    seed: Setting[int] = param(0, "the seed of all random numbers", bits=64)
    batchSize: Setting[int] = param(1024, "the number of rows of a step", at_least=1)
    admitAfter: Setting[int] = param(
        1, "a key is stored from its touch of this number on; see EmbeddingTable", at_least=1, at_most=255
    )
    expireAfterS: Setting[float | None] = param(
        None,
        "a key is removed this many seconds after its last touch: by the times of rows if timeCol is set, else by the "
        "driver's clock; not set: keys are not removed",
        above=0,
        type=float,
        option=None,
    )
    maxKeys: Setting[int | None] = param(
        None,
        "the maximum number of keys; more keys evict those that were touched least recently; not set: no limit",
        at_least=1,
        type=int,
    )
    timeCol: Setting[str | None] = param(
        None,
        "the column of the rows' times: timestamps, or seconds; used for the lag, late rows and expiry",
        type=str,
        option=None,
    )
    lateAfterS: Setting[float | None] = param(
        None,
        "skip a row that is more than this many seconds older than the newest row of earlier batches, and count it as "
        "late; not set: no row is late",
        at_least=0,
        type=float,
        option=None,
    )

    getLabelCol, setLabelCol = getter(labelCol), setter(labelCol)
    getPredictionCol, setPredictionCol = getter(predictionCol), setter(predictionCol)
    getMaxIter, setMaxIter = getter(maxIter), setter(maxIter)
    getSeed, setSeed = getter(seed), setter(seed)
    getBatchSize, setBatchSize = getter(batchSize), setter(batchSize)
    getAdmitAfter, setAdmitAfter = getter(admitAfter), setter(admitAfter)
    getExpireAfterS, setExpireAfterS = getter(expireAfterS), setter(expireAfterS)
    getMaxKeys, setMaxKeys = getter(maxKeys), setter(maxKeys)
    getTimeCol, setTimeCol = getter(timeCol), setter(timeCol)
    getLateAfterS, setLateAfterS = getter(lateAfterS), setter(lateAfterS)


class ClassSettings(Settings):
    """The columns of a classifier of labels 0 and 1, and its threshold."""

    probabilityCol: Setting[str] = param("probability", "the column of the probabilities", option=None, in_model=True)
    rawPredictionCol: Setting[str] = param("rawPrediction", "the column of the margins", option=None, in_model=True)
    threshold: Setting[float] = param(
        0.5, "predict 1 if its probability is above this", at_least=0, at_most=1, option=None, in_model=True
    )

    getProbabilityCol, setProbabilityCol = getter(probabilityCol), setter(probabilityCol)
    getRawPredictionCol, setRawPredictionCol = getter(rawPredictionCol), setter(rawPredictionCol)
    getThreshold, setThreshold = getter(threshold), setter(threshold)


class VectorSettings(Settings):
    """The vectors of keys."""

    factorSize: Setting[int] = param(16, "the size of a key's vector", at_least=1, option="rank")
    initStd: Setting[float] = param(
        0.01, "the standard deviation of the vectors' initial elements", at_least=0, option=None
    )

    getFactorSize, setFactorSize = getter(factorSize), setter(factorSize)
    getInitStd, setInitStd = getter(initStd), setter(initStd)
