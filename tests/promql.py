"""Which metrics an expression of PromQL asks for."""

from __future__ import annotations

import re

# What is no metric although it looks like one: operators between vectors, and the clauses that are followed by labels.
OPERATORS = {"and", "or", "unless", "bool", "offset", "Inf", "NaN"}
CLAUSES = r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)"
TOKEN = re.compile(r"(?<![\w$.])([a-zA-Z_:][\w:]*)\s*(\()?")


def metric_names(expression):
    """Return the names of an expression's metrics."""
    text = re.sub(r'"(?:[^"\\]|\\.)*"', "", expression)
    text = re.sub(r"\{[^}]*\}|\[[^\]]*\]", " ", text)
    text = re.sub(CLAUSES, " ", text)
    return {name for name, call in TOKEN.findall(text) if not call and name not in OPERATORS}


def names_of(families):
    """Return the names that samples of metric families have, whether there are any now or not."""
    endings = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"], "info": ["_info"]}
    return {family.name + ending for family in families for ending in endings.get(family.type, [""])}
