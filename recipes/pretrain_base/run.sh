#!/usr/bin/env bash
# BERT-base with the paper's settings: install, prepare, pretrain at 128 and then at 512 tokens, export.
# CORPUS= your text, VOCAB= an existing vocabulary (otherwise one is trained), NPROC= processes, RUN_DIR= output directory;
# relative paths start at the root of the repository. Further settings go to pretrain. To resume, run it again.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
: "${CORPUS:?set CORPUS= to files or a folder of text}"
run=${RUN_DIR:-runs/pretrain_base}
export HF_HOME="${HF_HOME:-$PWD/.venv/huggingface}"  # keep downloads inside the checkout

bash docker/install.sh .venv
bertkit=.venv/bin/bertkit

echo "== prepare: text -> tokenizer and token shards"
$bertkit prepare corpus.path="$CORPUS" ${VOCAB:+tokenizer.path="$VOCAB"} output_dir="$run/data"
echo "== pretrain: 90 % of the steps at 128 tokens, 10 % at 512"
$bertkit pretrain experiment=bert_base data_dir="$run/data" output_dir="$run/model" launch.num_processes="${NPROC:-1}" "$@"
echo "== export: a Hugging Face model, compared with transformers"
$bertkit export model_dir="$run/model" head=pretraining output_dir="$run/exported"
