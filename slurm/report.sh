#!/usr/bin/env bash
# Write the table and the report of a sweep's results. slurm/submit.sh starts it when all its jobs have ended.
#
#   sbatch slurm/report.sh results/resnet50
#
#SBATCH --job-name=scaleprof-report
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --time=0:30:00
set -euo pipefail
[[ ${1:-} != -h && ${1:-} != --help ]] || { sed -n '2,${/^\(#SBATCH\|[^#]\)/q;s/^# \{0,1\}//p}' "$0"; exit 0; }
cd "${SLURM_SUBMIT_DIR:-.}"
source slurm/common.sh
site=$("$PYTHON" -m jobs.site --shell) || exit
eval "$site"
code=0
"$PYTHON" -m analysis.scaled "$1" || code=$? # runs are missing: the report is written all the same
"$PYTHON" -m analysis.report "$1" || code=$?
exit $code
