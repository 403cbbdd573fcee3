#!/usr/bin/env bash
# Check all nodes of an allocation, and name those that are slow. It takes two minutes; exit code 1: one is slow.
#
#   sbatch --nodes=8 slurm/check.sh
#
# Options before the script are sbatch's (those of the site file: python -m jobs.site --sbatch), those after it
# jobs.check's. Environment: SCALEPROF_SITE (jobs/sites), LAUNCHER=mpirun, PYTHON.
#
#SBATCH --job-name=scaleprof-check
#SBATCH --nodes=4
#SBATCH --exclusive
#SBATCH --time=0:20:00
set -euo pipefail
[[ ${1:-} != -h && ${1:-} != --help ]] || { sed -n '2,${/^\(#SBATCH\|[^#]\)/q;s/^# \{0,1\}//p}' "$0"; exit 0; }
cd "${SLURM_SUBMIT_DIR:-.}"
source slurm/common.sh
site=$("$PYTHON" -m jobs.site --shell) || exit
eval "$site"
exec "$PYTHON" -m jobs.check --launcher "${LAUNCHER:-slurm}" "$@"
