"""KeyHasher in tasks of Spark, and the params of models of keys."""

from __future__ import annotations

import numpy as np
import pytest

from ps2.algorithms.feature import KeyHasher
from ps2.algorithms.frame.key_hasher import KeyParams
from ps2.algorithms.frame.keyed_models import with_key_predictions
from ps2.data.hashing import Field, FieldHasher
from ps2.errors import ConfigError, InputError

ROWS = [(2**60 + 1, "a", 1.5, [3, 4]), (None, "b", -2.0, [5]), (2**60 + 3, None, 0.0, [])]


@pytest.fixture(scope="module")
def frame(spark):
    return spark.createDataFrame(ROWS, "user bigint, site string, price double, ids array<bigint>").coalesce(1)


def test_hasher_when_in_tasks_then_keys_of_the_rows(frame):
    params = {"categoricalCols": ["user", "site"], "bucketCols": ["price"], "crosses": ["user:site"]}
    result = KeyHasher(**params).transform(frame).collect()
    fields = (*map(Field.categorical, ("user", "site")), Field.buckets("price"), Field.cross("user", "site"))
    expected = FieldHasher(fields).rows_of_dicts([row.asDict() for row in result])
    assert [row["user"] for row in result] == [row[0] for row in ROWS]  # 2**60 beside null stays exact
    np.testing.assert_array_equal(np.concatenate([row["keys"] for row in result]), expected.keys)
    assert [len(row["values"]) for row in result] == np.diff(expected.indptr).tolist() == [4, 2, 2]


def test_hasher_when_names_have_dots_then_same_keys(frame):
    hasher, field = KeyHasher(categoricalCols=["a.b"]), Field.categorical("a.b")
    dotted = frame.withColumnRenamed("site", "a.b")
    keys = [row["keys"] for row in hasher.transform(dotted).collect()]
    assert keys == [[FieldHasher((field,)).key(field, text)] for text in "ab"] + [[]]
    assert {row["field"] for row in hasher.names(dotted).collect()} == {"a.b"}


def test_names_when_asked_then_each_key_once(frame):
    hasher = KeyHasher(categoricalCols=["site", "user"])
    named = {row["key"]: (row["field"], row["value"]) for row in hasher.names(frame.union(frame)).collect()}
    keys = hasher.transform(frame).head()["keys"]
    assert [named[key] for key in keys] == [("site", "a"), ("user", str(2**60 + 1))]
    assert len(named) == 4


def test_hasher_when_saved_then_loaded(frame, tmp_path):
    hasher = KeyHasher(categoricalCols=["site"], bucketCols={"price": [0, 1]}, crosses=[["site", "user"]], hashSeed=5)
    hasher.write().save(str(tmp_path / "hasher"))
    loaded = KeyHasher.load(str(tmp_path / "hasher"))
    assert loaded._hasher() == hasher._hasher()


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"categoricalCols": ["price"]}, "column 'price': expected strings, integers or booleans.*, got double"),
        ({"categoricalCols": ["nobody"]}, "there is no column 'nobody'; there are: user, site"),
        ({"numericCols": ["site"]}, "column 'site': expected numbers, got string"),
        ({"crosses": ["site:ids"]}, "column 'ids': expected strings, integers or booleans, one value a row"),
        ({"categoricalCols": ["site"], "keysCol": "site"}, "column 'site': it is there already"),
    ],
)
def test_hasher_when_column_is_wrong_then_error(frame, params, message):
    with pytest.raises(InputError, match=message):
        KeyHasher(**params).transform(frame)


def test_hasher_when_its_column_comes_twice_then_error(frame):
    with pytest.raises(InputError, match="column 'site': expected one column of that name, got 2"):
        KeyHasher(categoricalCols=["site"]).transform(frame.selectExpr("*", "site"))


def test_hasher_when_other_names_come_twice_then_stay(frame):
    twins = frame.selectExpr("*", "price * 2 as price", "user as USER")
    result = KeyHasher(categoricalCols=["site"]).transform(twins)
    assert result.columns == [*twins.columns, "keys", "values"]
    assert [tuple(row)[2:6] for row in result.collect()] == [(x, ids, 2 * x, user) for user, _, x, ids in ROWS]


def test_predictions_when_other_names_come_twice_then_stay(frame):
    twins = frame.selectExpr("*", "price * 2 as price", "user as USER", "site as SITE")
    hasher = FieldHasher((Field.categorical("site"),))

    def keys_of_rows(rows):
        return np.diff(rows.indptr).astype(float)

    result = with_key_predictions(twins, hasher, keys_of_rows, None, [("margin", "prediction")])
    assert result.columns == [*twins.columns, "margin"]
    assert [tuple(row)[4:] for row in result.collect()] == [
        (3.0, ROWS[0][0], "a", 1.0),
        (-4.0, None, "b", 1.0),
        (0.0, ROWS[2][0], None, 0.0),
    ]


def test_key_params_when_nothing_is_named_then_keys(frame):
    params = KeyParams()
    assert params._hasher(frame.withColumnRenamed("ids", "keys")).fields == (Field.keys("keys"),)
    with pytest.raises(ConfigError, match=r"expected columns in categoricalCols.* got none; there are: user"):
        params._hasher(frame)


def test_key_params_when_keys_and_columns_then_both(frame):
    params = KeyParams(categoricalCols=["site"], keysCol="ids")
    assert params._hasher(frame).fields == (Field.categorical("site"), Field.keys("ids"))
    with pytest.raises(ConfigError, match="valuesCol: expected keysCol, the column of"):
        KeyParams(categoricalCols=["site"], valuesCol="ids")._hasher(frame)


@pytest.mark.parametrize("zone", ["America/New_York", "+05:30"])
def test_parts_of_times_when_session_has_zone_then_as_sparks(spark, zone):
    """Of timestamps, of timestamps without a zone and of dates, before 1970 too."""
    earlier = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        times = spark.sql(
            "SELECT timestamp_seconds(id * 9999991) AS t, date_add(DATE'1950-01-01', cast(id * 97 AS int)) AS d, "
            "cast(timestamp_seconds(id * 7777777) AS timestamp_ntz) AS n FROM range(-60, 140)"
        )
        calls = ["hour(t)", "weekday(t)", "month(t)", "hour(n)", "weekday(d)", "datediff(d, t)"]
        expected = {(call, str(row[0])) for call in calls for row in times.selectExpr(call).distinct().collect()}
        names = KeyHasher(categoricalCols=calls).names(times).collect()
        assert {(row["field"], row["value"]) for row in names} == expected
    finally:
        spark.conf.set("spark.sql.session.timeZone", earlier)


def test_parts_of_times_when_column_is_text_then_error(frame):
    with pytest.raises(InputError, match=r"column 'site': expected timestamps for hour\(site\), got string"):
        KeyHasher(categoricalCols=["hour(site)"]).transform(frame)
