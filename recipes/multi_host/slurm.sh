#!/usr/bin/env bash
# recipes/multi_host/run.sh as a Slurm job: CORPUS=/shared/wiki RUN_DIR=/shared/run sbatch recipes/multi_host/slurm.sh precision=bf16
# The README's section "Slurm" prepares the text first, in a job of its own, and names account, partition, modules and nodes without a network.
#SBATCH --job-name=bertkit
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=32
#SBATCH --time=24:00:00
#SBATCH --signal=USR1@300
#SBATCH --requeue
#SBATCH --open-mode=append
# One task per host, bertkit's launcher, starts the processes there. Five minutes before the time limit SIGUSR1 requests a
# checkpoint; exit code 75 means that it is saved, and the job is requeued to resume from it.
# A failing task ends the others; a finished task does not, because host 0 exports last.
set -uo pipefail
trap : TERM USR1  # Slurm also signals this shell, which must wait for srun's exit code
cd "$SLURM_SUBMIT_DIR" || exit 2
ADDRESS=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1):$((20000 + SLURM_JOB_ID % 10000))
export ADDRESS NUM_HOSTS=$SLURM_NNODES NPROC=${NPROC:-8} GRACE=${GRACE:-10}
# since Slurm 22.05, srun does not inherit this number from the job
[ -z "${SLURM_CPUS_PER_TASK:-}" ] || export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
# shellcheck disable=SC2016
srun --kill-on-bad-exit=1 --wait=0 bash -c 'HOST_RANK=$SLURM_NODEID exec recipes/multi_host/run.sh "$@"' run "$@"
code=$?
[ "$code" != 75 ] || scontrol requeue "$SLURM_JOB_ID"
exit "$code"
