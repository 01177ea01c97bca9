#!/bin/sh
# Submit a training that attaches to the fleet of deploy/kubernetes: its driver and executors are pods beside the servers.
#
#   IMAGE=registry/ps2:0.1.0 deploy/kubernetes/job/submit.sh https://cluster:6443 local:///opt/job/train.py [arguments...]
#
# Other variables, with their defaults: NAMESPACE=ps2 FLEET=ps2 SERVERS=8 EXECUTORS=4 SERVICE_ACCOUNT=spark
#
# The job finds the servers in the environment:
#   PS2Context.getOrCreate(spark, fleet=os.environ["PS2_FLEET"], tokenFile="/run/secrets/ps2/token")
set -eu
[ $# -ge 2 ] || { echo "usage: IMAGE=... $0 https://API-SERVER JOB.py [arguments...]" >&2; exit 2; }
master=$1
shift
namespace=${NAMESPACE:-ps2} servers=${SERVERS:-8} name=${FLEET:-ps2}
# Without servers in PS2_FLEET, the job would start a fleet of its own.
[ "$servers" -ge 1 ] 2>/dev/null || { echo "SERVERS: expected a number of servers from 1 on, got '$servers'" >&2; exit 2; }

fleet=
index=0
while [ "$index" -lt "$servers" ]; do
  fleet="$fleet${fleet:+,}$name-$index.$name.$namespace.svc:7070"
  index=$((index + 1))
done

exec "${SPARK_SUBMIT:-spark-submit}" --master "k8s://$master" --deploy-mode cluster --name "$name-job" \
  --conf spark.kubernetes.namespace="$namespace" \
  --conf spark.kubernetes.container.image="${IMAGE:?the image of deploy/docker/Dockerfile, with the job in it}" \
  --conf spark.kubernetes.authenticate.driver.serviceAccountName="${SERVICE_ACCOUNT:-spark}" \
  --conf spark.kubernetes.driver.podTemplateFile="$(dirname "$(readlink -f "$0")")/driver.yaml" \
  --conf spark.kubernetes.driver.podTemplateContainerName=driver \
  --conf spark.kubernetes.driverEnv.PS2_FLEET="$fleet" \
  --conf spark.executor.instances="${EXECUTORS:-4}" \
  "$@"
