"""A job for ``deploy/standalone/submit.sh``: it attaches to the fleet of its environment, and adds in tasks."""

import sys

from pyspark.sql import SparkSession

from ps2 import DCV, PS2Conf, PS2Context

DIM = 100

if __name__ == "__main__":
    tasks = int(sys.argv[1])
    spark = SparkSession.builder.getOrCreate()
    with PS2Context.getOrCreate(spark, conf=PS2Conf.load()) as ps:
        weight = DCV.dense(DIM)
        spark.sparkContext.parallelize(range(tasks), tasks).foreach(lambda _: weight.add(1.0))
        print(f"{spark.sparkContext.master}: {len(ps.servers)} servers, sum {weight.sum():.0f}")
    spark.stop()
