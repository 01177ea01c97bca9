"""Recommend items: factorize ratings, measure on those held back, and recommend to everyone.

spark-submit examples/recommend.py RATINGS.txt [ITERATIONS]

A line of the file is "user item rating", as in MovieLens (u.data): numbers separated by white space.
A further one, such as a time, is not read.
"""

import sys

from pyspark.ml.evaluation import RegressionEvaluator
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from ps2.algorithms import MatrixFactorization

path = sys.argv[1]
num_iterations = int(sys.argv[2]) if len(sys.argv) > 2 else 20

spark = SparkSession.builder.appName("recommend").getOrCreate()
fields = F.split(F.trim("value"), r"\s+")
ratings = spark.read.text(path).select(
    fields[0].cast("int").alias("user"), fields[1].cast("int").alias("item"), fields[2].cast("double").alias("rating")
)
train, test = (part.cache() for part in ratings.randomSplit([0.9, 0.1], seed=1))

estimator = MatrixFactorization(
    rank=16, maxIter=num_iterations, regParam=0.05, biases=True, coldStartStrategy="drop", seed=1
)
model = estimator.fit(train)  # starts two servers beside Spark
for i, rmse in enumerate(model.summary.objectiveHistory):
    print(f"iteration {i + 1:3d}  RMSE {rmse:.4f}")
error = RegressionEvaluator(labelCol="rating").evaluate(model.transform(test))
print(f"RMSE of the ratings held back {error:.4f}")

for row in model.recommendForAllUsers(3).limit(5).collect():
    print(f"user {row.user}: {' '.join(f'{item} ({rating:.1f})' for item, rating in row.recommendations)}")

# On arrays, without a Spark job.
item = model.factors.items[0]
print(f"similar to item {item}: {' '.join(str(other) for other, _ in model.similarItems(item, 3))}")
spark.stop()
