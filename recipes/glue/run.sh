#!/usr/bin/env bash
# A pretrained BERT on GLUE: install, fine-tune every task with several seeds, sum up, and write the archive for the server.
# MODEL_DIR= any model, DATA_DIR= GLUE's folder, RUN_DIR= where the results go; paths are seen from the root of the
# repository, further settings go to glue, and through it to every run. Run again, it resumes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
: "${MODEL_DIR:?set MODEL_DIR= to the directory of a model}" "${DATA_DIR:?set DATA_DIR= to the folder of GLUE}"
run=${RUN_DIR:-runs/glue}
export HF_HOME="${HF_HOME:-$PWD/.venv/huggingface}"  # nothing outside of the checkout

bash docker/install.sh .venv
bertkit=.venv/bin/bertkit

echo "== glue: every task and seed, the table, the archive"
$bertkit glue model_dir="$MODEL_DIR" data_dir="$DATA_DIR" output_dir="$run" "$@"
