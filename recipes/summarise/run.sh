#!/usr/bin/env bash
# Summaries on your own files, with a BERT encoder and a decoder that share weights: install, fine-tune, export, summarise.
# MODEL_DIR= any BERT, DATA_DIR= the folder of train.* and dev.* (CSV, TSV, JSON lines, parquet) with the columns SOURCE= (document) and
# TARGET= (summary), INPUT= more documents in the same format, RUN_DIR= output directory; relative paths start at the root of the repository.
# Further settings go to finetune. To resume, run it again.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
: "${MODEL_DIR:?set MODEL_DIR= to the directory of a BERT}" "${DATA_DIR:?set DATA_DIR= to the folder of train.* and dev.*}"
run=${RUN_DIR:-runs/summarise}
export HF_HOME="${HF_HOME:-$PWD/.venv/huggingface}"  # keep downloads inside the checkout

bash docker/install.sh .venv '[generation]'
bertkit=.venv/bin/bertkit
echo "== finetune: encoder and decoder share one set of weights; only the cross-attention is new"
$bertkit finetune task=generation decoder=bert decoder.share=true model_dir="$MODEL_DIR" data_dir="$DATA_DIR" \
  task.columns.source="${SOURCE:-document}" task.columns.target="${TARGET:-summary}" output_dir="$run/model" "$@"
echo "== export: an EncoderDecoderModel, compared with transformers"
$bertkit export model_dir="$run/model" output_dir="$run/exported"
[ -z "${INPUT:-}" ] || $bertkit predict model_dir="$run/model" input="$INPUT" output="$run/written.jsonl" overwrite=true
