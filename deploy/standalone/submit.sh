#!/bin/sh
# Submit a training that attaches to the fleet of start-fleet.sh, from the machine where that was run.
#
#   SPARK_MASTER=spark://host:7077 deploy/standalone/submit.sh train.py [arguments...]
#   SPARK_MASTER=spark://host:7077 FLEET=ads deploy/standalone/submit.sh --total-executor-cores 8 train.py [arguments...]
#
# The job finds the servers and the file with their token in its environment (ps2 env):
#   PS2Context.getOrCreate(spark, conf=PS2Conf.load())
# PS2_COMMAND and SPARK_SUBMIT name a ps2 and a spark-submit that are not on PATH.
set -eu
[ $# -ge 1 ] || { echo "usage: SPARK_MASTER=spark://host:7077 $0 [options of spark-submit] JOB.py [arguments...]" >&2; exit 2; }
: "${SPARK_MASTER:?the master of the cluster, such as spark://host:7077}"
# A command that fails in the eval itself would go unnoticed.
fleet=$("${PS2_COMMAND:-ps2}" env --name "${FLEET:-default}")
eval "$fleet"
exec "${SPARK_SUBMIT:-spark-submit}" --master "$SPARK_MASTER" "$@"
