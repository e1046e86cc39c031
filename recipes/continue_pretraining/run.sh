#!/usr/bin/env bash
# Continue to pretrain a BERT on your text: install, prepare with the model's own tokenizer, evaluate, pretrain, evaluate, export.
# MODEL_DIR= a Hugging Face directory, CORPUS= your text, HELD_OUT_PROB=0.05 share of documents held out, HEAD=masked_lm exports that
# head alone, NPROC= processes, RUN_DIR= output directory; relative paths start at the root of the repository. Further settings go to
# pretrain.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
: "${MODEL_DIR:?set MODEL_DIR= to the directory of a model}" "${CORPUS:?set CORPUS= to files or a folder of text}"
run=${RUN_DIR:-runs/continue_pretraining}
export HF_HOME="${HF_HOME:-$PWD/.venv/huggingface}"  # keep downloads inside the checkout

bash docker/install.sh .venv
bertkit=.venv/bin/bertkit

evaluate() {
  compgen -G "$run/data/held_out/tokens-*" > /dev/null || { echo "skipped: no documents were held out; set HELD_OUT_PROB= and another RUN_DIR="; return; }
  $bertkit evaluate model_dir="$1" data_dir="$run/data" split=held_out
}

echo "== prepare: text -> token shards, in the model's vocabulary; some documents held out"
$bertkit prepare corpus.path="$CORPUS" tokenizer.path="$MODEL_DIR" held_out_prob="${HELD_OUT_PROB:-0.05}" output_dir="$run/data"
echo "== evaluate: the original model on the held-out documents"
evaluate "$MODEL_DIR"
echo "== pretrain: continue at a lower learning rate"
$bertkit pretrain experiment=continue_pretraining model_dir="$MODEL_DIR" data_dir="$run/data" output_dir="$run/model" launch.num_processes="${NPROC:-1}" "$@"
echo "== evaluate: the new model on the same documents"
evaluate "$run/model"
echo "== export: a Hugging Face model, compared with transformers"
$bertkit export model_dir="$run/model" head="${HEAD:-null}" output_dir="$run/exported"
