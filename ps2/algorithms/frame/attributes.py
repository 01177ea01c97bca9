"""Categories of features, from the metadata of DataFrame columns (ml_attr), as pyspark.ml's trees read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql.types import BooleanType, NumericType, StructField

from ps2.errors import InputError


def values_of(attribute: Mapping[str, Any], kind: str | None) -> int | None:
    """Return the number of values of a nominal or binary attribute; None if it is numeric or does not say."""
    if kind == "binary":
        return 2
    if kind != "nominal":
        return None
    if "vals" in attribute:
        return len(attribute["vals"])
    return int(attribute["num_vals"]) if "num_vals" in attribute else None


def categories_of(features: Sequence[StructField]) -> dict[int, int]:
    """Return the number of categories of each categorical feature, by feature number.

    Args:
        features: one column of vectors or arrays, or columns of numbers.

    Raises:
        InputError: a nominal attribute does not say how many values it has.
    """
    first = features[0]
    if isinstance(first.dataType, (NumericType, BooleanType)):
        found = [(number, field.metadata.get("ml_attr", {})) for number, field in enumerate(features)]
        described = [(number, attribute.get("type"), attribute) for number, attribute in found]
    else:
        by_kind = first.metadata.get("ml_attr", {}).get("attrs", {})
        described = [(int(one["idx"]), kind, one) for kind, attributes in by_kind.items() for one in attributes]
    categories = {}
    for number, kind, attribute in sorted(described, key=lambda one: one[0]):
        count = values_of(attribute, kind)
        if count is not None:
            categories[number] = count
        elif kind == "nominal":
            name = attribute.get("name", features[number].name if len(features) > 1 else number)
            raise InputError(f"feature {name}: expected a nominal attribute with its values, or how many there are")
    return categories
