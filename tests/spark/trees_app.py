"""A program that grows trees with four workers and three servers; it prints their digest.

python trees_app.py
"""

import sys
from pathlib import Path

from pyspark.sql import SparkSession

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from boosting import digest, trained

from ps2 import PS2Context

spark = SparkSession.builder.master("local[4]").config("spark.ui.enabled", "false").getOrCreate()
with PS2Context.getOrCreate(spark, servers=3) as ps:
    print(digest(trained(ps, spark, workers=4).forest))
spark.stop()
