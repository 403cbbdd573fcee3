#!/usr/bin/env bash
# Run a sweep inside one allocation: every run that fits into it, the largest first.
#
#   sbatch slurm/sweep.sh                                            configs/resnet50.yaml on 32 nodes
#   sbatch --nodes=4 --time=2:00:00 slurm/sweep.sh configs/mine.yaml --only loader=dali-gpu
#
# Options before the script are sbatch's and override the lines below. sbatch itself does not read the site file: for
# its partition, account, QOS and reservation, submit with
#   options=$(python -m jobs.site --sbatch) && sbatch $options slurm/sweep.sh ...
# (slurm/submit.sh does so by itself).
# Arguments after the script are those of jobs.sweep, the sweep file first. Environment: SCALEPROF_SITE (jobs/sites),
# LAUNCHER=mpirun, PYTHON, REPORT=no.
# When the time limit is close or nodes were lost, the job requeues itself and resumes later. A job that is submitted
# again resumes too. See docs/cluster.md.
#
#SBATCH --job-name=scaleprof
#SBATCH --nodes=32
#SBATCH --exclusive
#SBATCH --time=12:00:00
#SBATCH --signal=B:USR1@180
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail

early=no sweep=''
trap 'early=yes; [[ -z $sweep ]] || kill -USR1 $sweep' USR1
trap '[[ -n $sweep ]] || exit 143; kill -TERM $sweep' TERM
die() { echo "slurm/sweep.sh: $*" >&2; exit 2; }

[[ ${1:-} != -h && ${1:-} != --help ]] || { sed -n '2,${/^\(#SBATCH\|[^#]\)/q;s/^# \{0,1\}//p}' "$0"; exit 0; }
[[ -n ${SLURM_JOB_ID:-}${SCALEPROF_AGAIN:-} ]] ||
    die "submit it:  sbatch slurm/sweep.sh [CONFIG]  (without Slurm: python -m jobs.submit, or python -m jobs.sweep)"
# sbatch runs a copy of this script from its own folder.
[[ -n ${SCALEPROF_AGAIN:-} ]] || cd "$SLURM_SUBMIT_DIR"
[[ -f jobs/sweep.py ]] || die "submit it from the project's folder, not from $SLURM_SUBMIT_DIR"
requeue() { scontrol requeue "$SLURM_JOB_ID"; }
if [[ -n ${SCALEPROF_AGAIN:-} ]]; then # in a script that jobs.submit has written for PBS, LSF or Flux
    requeue() { $SCALEPROF_AGAIN <"$SCALEPROF_SCRIPT"; }
    starts=${SCALEPROF_SCRIPT%.sh}.$SCALEPROF_JOB_ID # of this job, by itself or by the batch system
    echo >>"$starts"
    SCALEPROF_RESTARTS=$(($(wc -l <"$starts") - 1))
    export SCALEPROF_RESTARTS
    REPORT=no # a job of its own writes it, before a job that was submitted again has ended
    ((SCALEPROF_RESTARTS == 0)) || REPORT=yes
    left=$((SCALEPROF_TIME_S > 180 ? SCALEPROF_TIME_S - 180 : 0))
    (sleep $left && kill -USR1 $$) >/dev/null 2>&1 &
    trap "pkill -P $! sleep || true" EXIT
fi
source slurm/common.sh
config=${1:-configs/resnet50.yaml}
shift || true
site=$("$PYTHON" -m jobs.sweep "$config" "$@" --print shell) || exit
eval "$site"
# In the background: a shell receives the batch system's signals only while it waits.
"$PYTHON" -m jobs.sweep "$config" --launcher "${LAUNCHER:-slurm}" --unavailable skip --order largest "$@" &
sweep=$!
at_once=$early # the time was up before the sweep began
[[ $early == no ]] || kill -USR1 $sweep
code=0
wait $sweep || code=$?
while ((code > 128)) && kill -0 $sweep 2>/dev/null; do # a signal ended the waiting, not the sweep
    code=0
    wait $sweep || code=$?
done
((code <= 128)) || { code=0; wait $sweep || code=$?; } # it ended between the two lines above
trap '' USR1 # the time that is nearly up ends nothing now

# 138: the same, a moment later (128 + SIGUSR1).
if [[ $at_once == yes ]] || ((code == 138)); then
    echo "slurm/sweep.sh: the time limit of the job is too short: it was over before the sweep began, and the job is" \
        "not requeued. --signal takes the last 3 minutes: submit it again with a --time of at least 10" >&2
    exit 1
fi
if ((code == 75)); then # the same command resumes it
    trap '' TERM        # by which Slurm ends this start of the job
    if why=$(requeue 2>&1); then
        echo "slurm/sweep.sh: back into the queue"
        exit 0
    fi
    echo "slurm/sweep.sh: the job cannot be requeued (${why//$'\n'/; }); submit it again to resume"
    code=1
fi
if ((code < 2)) && [[ ${REPORT:-yes} != no ]]; then
    directory=$("$PYTHON" -m jobs.sweep "$config" "$@" --print directory) || exit
    "$PYTHON" -m analysis.scaled "$directory" || true # missing runs are listed, and are no failure of the sweep
    "$PYTHON" -m analysis.report "$directory" || true
fi
exit $code
