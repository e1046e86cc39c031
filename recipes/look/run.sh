#!/usr/bin/env bash
# Fine-tune a BERT on a task, and look inside: a page and two pictures of what it attends to, and of what it decides by.
# MODEL_DIR= any model, DATA_DIR= the task's files, TASK= which (mrpc), TEXT= and TEXT_PAIR= what is looked at (TEXT_PAIR=
# empty for a task of single texts), LAYER= and HEAD= of the picture, RUN_DIR= where the results go; paths are seen from the
# root of the repository, further settings go to finetune. Run again, it resumes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
: "${MODEL_DIR:?set MODEL_DIR= to the directory of a model}" "${DATA_DIR:?set DATA_DIR= to the folder of the task, or of GLUE}"
run=${RUN_DIR:-runs/look}
export HF_HOME="${HF_HOME:-$PWD/.venv/huggingface}"  # nothing outside of the checkout
text=${TEXT:-The company sold the old ship in May.} pair=${TEXT_PAIR-In May the old ship was bought by the company.}

bash docker/install.sh .venv
bertkit=.venv/bin/bertkit
echo "== finetune: the best checkpoint on the dev split"
$bertkit finetune task="${TASK:-mrpc}" model_dir="$MODEL_DIR" data_dir="$DATA_DIR" output_dir="$run/model" "$@"
look=($bertkit view model_dir="$run/model" text="$text" ${pair:+text_pair="$pair"} overwrite=true)
echo "== view: all heads, one of them, one token in all layers, and what the label rests on"
"${look[@]}" output="$run/attention.html"
echo "== view: pictures for a paper, of all heads and of one"
"${look[@]}" output="$run/heads.svg"
"${look[@]}" output="$run/head.svg" layer="${LAYER:-1}" head="${HEAD:-1}"
echo "open $run/attention.html in a browser"
