#!/usr/bin/env bash
# Question answering over a collection: fine-tune a reader on SQuAD 2.0 (TASK=squad1 for 1.1), build a library of the dev set's
# passages, rank them for every question by the search engine, by BERT and by both, and print one answer.
# MODEL_DIR= any model, DATA_DIR= the folder of SQuAD's files, RUN_DIR= output directory, QUESTION= your question; relative
# paths start at the root of the repository. Further settings go to finetune. To resume, run it again.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
: "${MODEL_DIR:?set MODEL_DIR= to the directory of a model}" "${DATA_DIR:?set DATA_DIR= to the folder of the SQuAD files}"
run=${RUN_DIR:-runs/search_qa} task=${TASK:-squad2}
dev=$(find "$DATA_DIR" -name "dev-v${task#squad}.*.json" | sort | head -n 1)
export HF_HOME="${HF_HOME:-$PWD/.venv/huggingface}"  # keep downloads inside the checkout

bash docker/install.sh .venv
bertkit=.venv/bin/bertkit

echo "== finetune: a reader, which also recognises passages without an answer"
$bertkit finetune task="$task" model_dir="$MODEL_DIR" data_dir="$DATA_DIR" output_dir="$run/reader" "$@"
echo "== index: the passages of the dev set"
$bertkit index corpus.path="$dev" passages.stemming=english output="$run/library.db"
echo "== search: the metrics of each order; the weights both.* are fitted on the other half of the questions"
$bertkit search index="$run/library.db" model_dir="$run/reader" input="$dev" fit=true max_questions="${QUESTIONS:-400}" output="$run/found.jsonl" overwrite=true
echo "== search: one question, with the answers between arrows"
$bertkit search index="$run/library.db" model_dir="$run/reader" question="${QUESTION:-When did the Normans come to France?}" top_k=3
if [ -n "${XQUAD:-}" ]; then  # English questions on passages in TO=, such as es; CATALOGUES= has TO/LC_MESSAGES/*.mo
  to=${TO:-es} across=$run/${TO:-es}; .venv/bin/python recipes/search_qa/catalogues.py "$CATALOGUES" "$to" "$XQUAD/xquad.en.json" "$XQUAD/xquad.$to.json" "$across"
  $bertkit finetune task=translation decoder=transformer model=tiny tokenizer=wordpiece tokenizer.vocab_size=8000 tokenizer.lowercase=true schedule=noam \
    task.generation.num_beams=1 evaluation.every_steps=100000 num_epochs="${EPOCHS:-5}" data_dir="$across" output_dir="$across/translator"
  $bertkit index corpus.path="$XQUAD/xquad.$to.json" output="$across/library.db"
  for more in top_k=10 "glossary=$across/words.tsv" "translate=$across/translator" "translate=$across/translator glossary=$across/words.tsv"; do $bertkit search index="$across/library.db" input="$across/questions.jsonl" output="$across/found.jsonl" overwrite=true $more; done; fi
echo "to search on a web page: docker/install.sh .venv '[serve]' && .venv/bin/bertkit serve model_dir=$run/reader index=$run/library.db"
