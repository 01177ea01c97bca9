"""Sessions of Spark Connect, which have no SparkContext in the driver's program."""

from __future__ import annotations

from typing import Any

from ps2.errors import ConfigError


def refuse_connect(what: str, given: Any) -> None:
    """Raise ConfigError if something is of Spark Connect; ``what`` begins the sentence."""
    if type(given).__module__.startswith("pyspark.sql.connect"):
        raise ConfigError(
            f"{what} of Spark Connect cannot be used: the driver's program has no SparkContext there; make the "
            "SparkSession without remote()"
        )
