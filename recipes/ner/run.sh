#!/usr/bin/env bash
# A pretrained BERT on named entities (TASK=conll2003, or tagging for your own tags): install, fine-tune, export.
# MODEL_DIR= any model, DATA_DIR= the folder of CoNLL-2003's files, NPROC= processes, RUN_DIR= output directory; relative paths start at the root of the repository.
# Further settings go to finetune. To resume, run it again.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
: "${MODEL_DIR:?set MODEL_DIR= to the directory of a model}" "${DATA_DIR:?set DATA_DIR= to the folder of the CoNLL-2003 files}"
run=${RUN_DIR:-runs/ner}
export HF_HOME="${HF_HOME:-$PWD/.venv/huggingface}"  # keep downloads inside the checkout

bash docker/install.sh .venv
bertkit=.venv/bin/bertkit

echo "== finetune: the best checkpoint on the dev split, its scores and its predictions"
$bertkit finetune task="${TASK:-conll2003}" model_dir="$MODEL_DIR" data_dir="$DATA_DIR" output_dir="$run/model" launch.num_processes="${NPROC:-1}" "$@"
echo "== export: a Hugging Face model, compared with transformers"
$bertkit export model_dir="$run/model" head=task output_dir="$run/exported"
