#!/usr/bin/env bash
# From plain text (the documentation bundled with Python) to a BERT that transformers loads: install, prepare, pretrain, export, and fill masks.
# To resume, run it again. RUN_DIR= output directory (runs/quickstart).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
run=${RUN_DIR:-runs/quickstart}
export HF_HOME="${HF_HOME:-$PWD/.venv/huggingface}"  # keep downloads inside the checkout

bash docker/install.sh .venv '[serve]'
bertkit=.venv/bin/bertkit

echo "== prepare: text -> tokenizer and token shards"
$bertkit prepare corpus=python_docs tokenizer.vocab_size=2048 held_out_prob=0.05 output_dir="$run/data"
echo "== pretrain: a tiny BERT, masked LM"
$bertkit pretrain experiment=quickstart data_dir="$run/data" output_dir="$run/tiny" "$@"
echo "== export: a Hugging Face model, compared with transformers"
$bertkit export model_dir="$run/tiny" head=masked_lm output_dir="$run/tiny-mlm"
echo "== predict: the most probable words for each [MASK]"
$bertkit predict model_dir="$run/tiny" top_k=2 format=text input=- <<TEXTS
Return [MASK] if the object is a directory.
If the argument is omitted or [MASK], the default is used.
The method returns a [MASK] of strings.
A list [MASK] all names in the module.
The exception [MASK] raised if the file does not exist.
TEXTS

cat <<NEXT

Next:
  $bertkit evaluate model_dir=$run/tiny data_dir=$run/data segments.max_seq_length=32
  $bertkit prepare corpus.path=YOUR_TEXT output_dir=runs/mine
  $bertkit pretrain experiment=quickstart data_dir=runs/mine output_dir=runs/tiny
NEXT
