#!/usr/bin/env bash
# BERT-base on several hosts: the same command on each, with its own HOST_RANK= (0, 1, ...); host 0 prepares and exports.
# NUM_HOSTS= of them, ADDRESS= HOST:PORT of host 0, NPROC= processes on each, CORPUS= your text, VOCAB= an existing vocabulary,
# RUN_DIR= a folder that all hosts see; paths are seen from the root of the repository, further settings go to pretrain.
set -euo pipefail
trap : USR1 TERM  # Slurm sends them to every process; bertkit saves and ends, then this script does
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
: "${CORPUS:?set CORPUS= to files or a folder of text}"
run=${RUN_DIR:-runs/multi_host} rank=${HOST_RANK:-0} bertkit=.venv/bin/bertkit
export HF_HOME="${HF_HOME:-$PWD/.venv/huggingface}" HF_HUB_OFFLINE=1  # nothing outside of the checkout

until [ "$rank" = 0 ] || [ -f "$run/data/manifest.json" ]; do sleep 1; done
bash docker/install.sh .venv
if [ "$rank" = 0 ]; then
  echo "== prepare: text -> tokenizer and token shards"
  $bertkit prepare corpus.path="$CORPUS" ${VOCAB:+tokenizer.path="$VOCAB"} output_dir="$run/data"
fi
echo "== pretrain: host $rank of ${NUM_HOSTS:-1}, ${NPROC:-1} process(es) here"
$bertkit pretrain experiment=bert_base data_dir="$run/data" output_dir="$run/model" launch.num_processes="${NPROC:-1}" \
  launch.num_hosts="${NUM_HOSTS:-1}" launch.host_rank="$rank" launch.address="${ADDRESS:-null}" "$@"
[ "$rank" = 0 ] || exit 0
echo "== export: a model for transformers, compared with it"
$bertkit export checkpoint="$run/model" head=pretraining output_dir="$run/exported"
