#!/usr/bin/env bash
# Submit a sweep as one job for each number of nodes, so that small runs do not hold a large allocation.
#
#   slurm/submit.sh configs/resnet50.yaml                      smallest first, one after the other
#   slurm/submit.sh configs/resnet50.yaml --time=2:00:00       with more options of sbatch, for each job
#   slurm/submit.sh configs/resnet50.yaml -- --only batch=32   after --: options of jobs.sweep
#   slurm/submit.sh configs/resnet50.yaml --dry-run            print the jobs and their commands, submit nothing
#   AT_ONCE=yes slurm/submit.sh ...                            all as soon as nodes are free: less waiting, but
#                                                              they share the network that is being measured
#   CHECK=no slurm/submit.sh ...                               skip the checks: this node lacks data or GPUs that jobs have
# A last job writes the table and the report when all have ended, successfully or not. Partition, account, QOS,
# reservation and modules are those of the site file (SCALEPROF_SITE, or the one with this cluster's name).
set -euo pipefail
cd "$(dirname "$0")/.."
die() { echo "slurm/submit.sh: $*" >&2; exit 2; }

help() { sed -n '2,${/^\(#SBATCH\|[^#]\)/q;s/^# \{0,1\}//p}' "$0"; }

[[ ${1:-} != -h && ${1:-} != --help ]] || { help; exit 0; }
[[ $# -gt 0 ]] || { help >&2; exit 2; }
[[ $1 != -* || $1 == --dry-run ]] || die "the sweep file comes first: slurm/submit.sh CONFIG $1"
command -v sbatch >/dev/null || die "no sbatch here; is this a node of a Slurm cluster?"
source slurm/common.sh
exec "$PYTHON" -m jobs.submit "$@"
