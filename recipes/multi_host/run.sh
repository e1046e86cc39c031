#!/usr/bin/env bash
# BERT-base on several hosts: the same command on each, with its own HOST_RANK= (0, 1, ...); host 0 prepares and exports.
# NUM_HOSTS= number of hosts, ADDRESS= HOST:PORT of host 0, NPROC= processes per host, CORPUS= your text, VOCAB= a vocabulary, MODEL_DIR= a
# model to continue from, STEP=prepare stops before training, RUN_DIR= a folder shared by all hosts. Further settings go to pretrain.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
: "${CORPUS:?set CORPUS= to files or a folder of text}"
run_dir=${RUN_DIR:-runs/multi_host} rank=${HOST_RANK:-0} vocab=${VOCAB:-${MODEL_DIR:-}} bertkit=.venv/bin/bertkit job=''
export HF_HOME="${HF_HOME:-$PWD/.venv/huggingface}"  # keep downloads inside the checkout
# Forward signals to the command and exit with its code; bash would handle a signal only after a foreground command ends.
pass_on() { [ -n "$job" ] || exit 143; kill -s "$1" "$job" 2> /dev/null || :; }
trap 'pass_on TERM' TERM; trap 'pass_on INT' INT; trap 'pass_on USR1' USR1
run() {
  "$@" & job=$! code=0
  while kill -0 "$job" 2> /dev/null; do wait "$job" || :; done
  wait "$job" || code=$?; [ "$code" != 75 ] || sleep "${GRACE:-0}"  # in slurm.sh: wait until the other hosts have exited too
  job=''; [ "$code" = 0 ] || exit "$code"
}
data=$run_dir/data/manifest.json minutes=${WAIT_MINUTES:-720}
[ "$rank" = 0 ] || [ -f "$data" ] || echo "== host $rank waits for $data, which host 0 writes, for $minutes minutes (WAIT_MINUTES=)"
until [ "$rank" = 0 ] || [ -f "$data" ]; do
  [ "$SECONDS" -lt $((minutes * 60)) ] || { echo "error: $data is not there; RUN_DIR= must be a folder that all hosts share" >&2; exit 2; }
  sleep 1
done
bash docker/install.sh .venv
[ "$rank" != 0 ] || echo "== prepare: text -> tokenizer and token shards"
[ "$rank" != 0 ] || run $bertkit prepare corpus.path="$CORPUS" ${vocab:+tokenizer.path="$vocab"} output_dir="$run_dir/data"
[ "${STEP:-}" != prepare ] || exit 0
echo "== pretrain: host $rank of ${NUM_HOSTS:-1}, processes here: ${NPROC:-1}"
start=${MODEL_DIR:+continue_pretraining}
run $bertkit pretrain experiment="${start:-bert_base}" ${MODEL_DIR:+model_dir="$MODEL_DIR"} data_dir="$run_dir/data" output_dir="$run_dir/model" \
  launch.num_processes="${NPROC:-1}" launch.num_hosts="${NUM_HOSTS:-1}" launch.host_rank="$rank" launch.address="${ADDRESS:-null}" "$@"
[ "$rank" = 0 ] || exit 0
echo "== export: a Hugging Face model, compared with transformers"
run $bertkit export model_dir="$run_dir/model" output_dir="$run_dir/exported"
