#!/bin/sh
# Start a fleet of servers on a Spark standalone cluster, beside the jobs that attach to it.
# ps2 stop [--name NAME] ends it.
#
#   SPARK_MASTER=spark://host:7077 deploy/standalone/start-fleet.sh --servers 8 --memory 4g [options of ps2 launch...]
#   SPARK_MASTER=spark://host:7077 deploy/standalone/start-fleet.sh --servers 8 --name ads -- --archives env.tar.gz#environment
#
# What is behind -- goes to spark-submit. PS2_COMMAND names a ps2 that is not on PATH.
set -eu
: "${SPARK_MASTER:?the master of the cluster, such as spark://host:7077}"
# Options of ps2 launch come before --, those of spark-submit behind it.
for argument in "$@"; do
  [ "$argument" = -- ] && exec "${PS2_COMMAND:-ps2}" launch --on spark --detach "$@" --master "$SPARK_MASTER"
done
exec "${PS2_COMMAND:-ps2}" launch --on spark --detach "$@" -- --master "$SPARK_MASTER"
