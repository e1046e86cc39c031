#!/usr/bin/env bash
# Questions to a collection: a reader, fine-tuned on SQuAD 2.0 (TASK=squad1 for 1.1), a library of the dev set's passages, every
# question of it answered in the order of the search engine, of BERT and of both, and one answered in print.
# MODEL_DIR= any model, DATA_DIR= the folder of SQuAD's files, RUN_DIR= where the results go, QUESTION= your own; paths are seen from
# the root of the repository, further settings go to finetune. Run again, it resumes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
: "${MODEL_DIR:?set MODEL_DIR= to the directory of a model}" "${DATA_DIR:?set DATA_DIR= to the folder of the files of SQuAD}"
run=${RUN_DIR:-runs/search_qa} task=${TASK:-squad2}
dev=$(find "$DATA_DIR" -name "dev-v${task#squad}.*.json" | sort | head -n 1)
export HF_HOME="${HF_HOME:-$PWD/.venv/huggingface}"  # nothing outside of the checkout

bash docker/install.sh .venv
bertkit=.venv/bin/bertkit

echo "== finetune: a reader, which also tells where no answer is"
$bertkit finetune task="$task" model_dir="$MODEL_DIR" data_dir="$DATA_DIR" output_dir="$run/reader" "$@"
echo "== index: the passages of the dev set"
$bertkit index corpus.path="$dev" passages.stemming=english output="$run/library.db"
echo "== search: how often the right passage is first, by each order; both.* is fitted on the other half of the questions"
$bertkit search index="$run/library.db" model_dir="$run/reader" input="$dev" fit=true max_questions="${QUESTIONS:-400}" output="$run/found.jsonl" overwrite=true
echo "== search: one question, its answers between arrows"
$bertkit search index="$run/library.db" model_dir="$run/reader" question="${QUESTION:-When did the Normans come to France?}" top_k=3
echo "a page of it: .venv/bin/pip install '.[serve]' && .venv/bin/bertkit serve model_dir=$run/reader index=$run/library.db"
