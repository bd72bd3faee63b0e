#!/bin/bash
# One learner on each node of a Slurm job:
#
#     sbatch --nodes 4 examples/launch/slurm.sh
#
# A node that fails takes only its learner away (--no-kill). A job that is preempted, or whose batch
# node fails, goes on from the checkpoints when it runs again (--requeue, --open-mode=append).
# To call your own script, change the line that begins with "exec python".

#SBATCH --job-name=mend
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --no-kill
#SBATCH --open-mode=append
#SBATCH --output=mend-%j.log

set -euo pipefail

# These two must be on a file system that all nodes share.
export RUN="${RUN:-$HOME/mend-runs/$SLURM_JOB_ID}"
export MEND_SECRET_FILE="${MEND_SECRET_FILE:-$RUN/cluster.secret}"
mkdir -p "$RUN"
[ -e "$MEND_SECRET_FILE" ] || mend certs secret "$MEND_SECRET_FILE"

# A port of this job: another one may have a node in common with it.
export PORT="${PORT:-$((20000 + SLURM_JOB_ID % 9000))}"
# Every learner gets the same list, and leaves itself out of it.
MEND_PEERS="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed "s/\$/:$PORT/" | paste -sd,)"
export MEND_PEERS

# On each node. The name stays the same when the job, or the learner, runs again.
learner() {
    export MEND_NAME="learner-$SLURM_PROCID"
    export MEND_LISTEN="${LISTEN:-0.0.0.0}:$PORT"
    exec python "${SCRIPT:-examples/train_text.py}" --shard "$SLURM_PROCID/$SLURM_NTASKS" \
        --checkpoint "$RUN/$MEND_NAME.pt" --ledger "$RUN/$MEND_NAME.jsonl" ${OPTIONS:-}
}
# A learner that fails is started again, unless Slurm has told it to end.
again() {
    trap 'kill -TERM "$pid" 2>/dev/null; wait "$pid"; exit 143' TERM
    until (learner) & pid=$!; wait "$pid"; do
        echo "learner-$SLURM_PROCID ended with status $?; it starts again in ${PAUSE:-10} s" >&2
        sleep "${PAUSE:-10}"
    done
}
export -f learner again

# The others train on when one ends.
srun --kill-on-bad-exit=0 --wait=0 bash -c again
