#!/usr/bin/env bash
# A pretrained BERT on GLUE: install, fine-tune on every task with several seeds, average, and write the submission for the server.
# MODEL_DIR= any model, DATA_DIR= GLUE's folder, RUN_DIR= output directory; relative paths start at the root of the repository.
# Further settings go to glue, and through it to every run. To resume, run it again.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
: "${MODEL_DIR:?set MODEL_DIR= to the directory of a model}" "${DATA_DIR:?set DATA_DIR= to the folder of GLUE}"
run=${RUN_DIR:-runs/glue}
export HF_HOME="${HF_HOME:-$PWD/.venv/huggingface}"  # keep downloads inside the checkout

bash docker/install.sh .venv
bertkit=.venv/bin/bertkit

echo "== glue: every task and seed, the table, the archive"
$bertkit glue model_dir="$MODEL_DIR" data_dir="$DATA_DIR" output_dir="$run" "$@"
