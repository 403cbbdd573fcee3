#!/usr/bin/env bash
# Submit a sweep as one job for each number of nodes, so that small runs do not hold a large allocation.
#
#   slurm/submit.sh configs/resnet50.yaml                      smallest first, one after the other
#   slurm/submit.sh configs/resnet50.yaml --time=2:00:00       with more options of sbatch, for each job
#   slurm/submit.sh configs/resnet50.yaml -- --only batch=32   after --: options of jobs.sweep
#   AT_ONCE=yes slurm/submit.sh ...                            all as soon as nodes are free: less waiting, but
#                                                              they share the network that is being measured
# A last job writes the table and the report when all have ended, successfully or not. Partition, account and modules
# are those of the site file (SCALEPROF_SITE, or the one with this cluster's name).
set -euo pipefail
cd "$(dirname "$0")/.."
[[ $# -gt 0 && $1 != -* ]] || { sed -n '2,11s/^# \{0,1\}//p' "$0" >&2; exit 2; }
command -v sbatch >/dev/null || { echo "slurm/submit.sh: no sbatch here; is this a node of a Slurm cluster?" >&2; exit 2; }
source slurm/common.sh
config=$1 own=()
shift
while [[ $# -gt 0 && $1 != -- ]]; do own+=("$1"); shift; done
[[ $# -eq 0 ]] || shift

directory=$("$PYTHON" -m jobs.sweep "$config" "$@" --print directory) || exit
counts=$("$PYTHON" -m jobs.sweep "$config" "$@" --print node-counts) || exit
words=$("$PYTHON" -m jobs.site --sbatch) || exit
mapfile -t flags < <(printf '%s' "${words:+$words$'\n'}")

submit() { # sbatch's own line says what it refuses
    sbatch --parsable "${flags[@]}" "${own[@]}" "$@"
}

previous='' all=''
for nodes in $counts; do
    after=()
    [[ -z $previous || ${AT_ONCE:-no} == yes ]] || after=("--dependency=afterany:$previous")
    job=$(REPORT=no submit --nodes="$nodes" --job-name="scaleprof-$nodes" "${after[@]}" \
        slurm/sweep.sh "$config" --only "nodes=$nodes" "$@") || exit
    previous=${job%%;*} all=$all:${job%%;*}
    echo "job $previous: $nodes nodes"
done
job=$(submit --dependency="afterany$all" slurm/report.sh "$directory") || exit
echo "job ${job%%;*}: the report, $directory/report.html"
