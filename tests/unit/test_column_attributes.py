"""Which features have categories, by columns' metadata."""

from __future__ import annotations

import pytest
from pyspark.ml.linalg import VectorUDT
from pyspark.sql.types import DoubleType, StructField

from ps2.algorithms.frame.frames import categories_of, feature_names
from ps2.errors import InputError


def vectors(**attributes):
    return (StructField("features", VectorUDT(), metadata={"ml_attr": {"attrs": attributes, "num_attrs": 5}}),)


def test_categories_of_when_nominal_or_binary_then_counts_them():
    fields = vectors(
        numeric=[{"idx": 0, "name": "age"}],
        nominal=[{"idx": 3, "vals": ["a", "b", "c"]}, {"idx": 1, "num_vals": 7}],
        binary=[{"idx": 4}],
    )
    assert categories_of(fields) == {1: 7, 3: 3, 4: 2}


def test_feature_names_when_metadata_have_some_then_has_them():
    fields = vectors(
        numeric=[{"idx": 0, "name": "age"}, {"idx": 1}], nominal=[{"idx": 3, "name": "kind", "num_vals": 2}]
    )
    assert feature_names(fields[0]) == {0: "age", 3: "kind"}


def test_categories_of_when_number_columns_then_reads_each_one():
    metadata = [{}, {"ml_attr": {"type": "nominal", "vals": ["x", "y"]}}, {"ml_attr": {"type": "numeric"}}]
    fields = tuple(StructField(f"f{i}", DoubleType(), metadata=one) for i, one in enumerate(metadata))
    assert categories_of(fields) == {1: 2}


def test_categories_of_when_no_attributes_then_none():
    assert categories_of((StructField("features", VectorUDT()),)) == {}
    assert categories_of((StructField("features", VectorUDT(), metadata={"ml_attr": {"num_attrs": 5}}),)) == {}


def test_categories_of_when_nominal_has_no_count_then_is_named():
    with pytest.raises(InputError, match="feature city: expected a nominal attribute with its values"):
        categories_of(vectors(nominal=[{"idx": 0, "name": "city"}]))
    for number in ({}, {"num_vals": -3}, {"num_vals": 2.5}, {"num_vals": "7"}):
        with pytest.raises(InputError, match="feature 2: expected"):
            categories_of(vectors(nominal=[{"idx": 2, **number}]))
