"""A program that grows trees with four workers on one, two and three servers; it prints their digests.

python trees_app.py
"""

import sys
from pathlib import Path

from pyspark.sql import SparkSession

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from boosting import digest, trained

from ps2 import PS2Context

settings = {"spark.ui.enabled": "false"}
spark = SparkSession.builder.master("local[4]").config(map=settings).getOrCreate()
for servers in (1, 2, 3):
    with PS2Context.getOrCreate(spark, servers=servers) as ps:
        print(digest(trained(ps, spark, workers=4, sparse=servers == 2).forest))
spark.stop()
