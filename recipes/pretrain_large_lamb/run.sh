#!/usr/bin/env bash
# BERT-large with LAMB in very large batches, NVIDIA's two phases: install, prepare, pretrain at 128 tokens, continue with
# its weights and moments at 512 tokens, export. CORPUS= your text, VOCAB= an existing vocabulary (otherwise one is trained), NPROC=
# processes, RUN_DIR= output directory; relative paths start at the root of the repository. Further settings go to both runs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
: "${CORPUS:?set CORPUS= to files or a folder of text}"
run=${RUN_DIR:-runs/pretrain_large_lamb}
export HF_HOME="${HF_HOME:-$PWD/.venv/huggingface}"  # keep downloads inside the checkout

bash docker/install.sh .venv
bertkit=.venv/bin/bertkit

echo "== prepare: text -> tokenizer and token shards"
$bertkit prepare corpus.path="$CORPUS" ${VOCAB:+tokenizer.path="$VOCAB"} output_dir="$run/data"
echo "== pretrain, phase 1: 128 tokens"
$bertkit pretrain experiment=bert_large_lamb_phase1 data_dir="$run/data" output_dir="$run/phase1" launch.num_processes="${NPROC:-1}" "$@"
echo "== pretrain, phase 2: 512 tokens, from the weights and the moments of phase 1"
$bertkit pretrain experiment=bert_large_lamb_phase2 data_dir="$run/data" output_dir="$run/phase2" launch.num_processes="${NPROC:-1}" \
  model_dir="$run/phase1" init_moments=true "$@"
echo "== export: a Hugging Face model, compared with transformers"
$bertkit export model_dir="$run/phase2" head=pretraining output_dir="$run/exported"
