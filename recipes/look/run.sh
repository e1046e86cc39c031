#!/usr/bin/env bash
# Fine-tune a BERT on a task, and look inside: a page and two pictures with attention and attributions.
# MODEL_DIR= any model, DATA_DIR= the task's files, TASK= the task (mrpc), TEXT= and TEXT_PAIR= the input (TEXT_PAIR= is empty for
# single texts), LAYER= and HEAD= for the second picture, RUN_DIR= output directory; relative paths start at the root of the repository.
# Further settings go to finetune. To resume, run it again.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
: "${MODEL_DIR:?set MODEL_DIR= to the directory of a model}" "${DATA_DIR:?set DATA_DIR= to the folder of the task, or of GLUE}"
run=${RUN_DIR:-runs/look}
export HF_HOME="${HF_HOME:-$PWD/.venv/huggingface}"  # keep downloads inside the checkout
text=${TEXT:-The company sold the old ship in May.} pair=${TEXT_PAIR-In May the old ship was bought by the company.}

bash docker/install.sh .venv
bertkit=.venv/bin/bertkit
echo "== finetune: the best checkpoint on the dev split"
$bertkit finetune task="${TASK:-mrpc}" model_dir="$MODEL_DIR" data_dir="$DATA_DIR" output_dir="$run/model" "$@"
look=($bertkit view model_dir="$run/model" text="$text" ${pair:+text_pair="$pair"} overwrite=true)
echo "== view: a page with all heads, one head, one token in all layers, and attributions for the label"
"${look[@]}" output="$run/attention.html"
echo "== view: pictures of all heads and of one head, for a paper"
"${look[@]}" output="$run/heads.svg"
"${look[@]}" output="$run/head.svg" layer="${LAYER:-1}" head="${HEAD:-1}"
echo "open $run/attention.html in a browser"
