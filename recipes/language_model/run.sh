#!/usr/bin/env bash
# A causal language model and a masked one, with the same text and steps: install, prepare, pretrain both, let both predict, export the first.
# CORPUS= your text, VOCAB_SIZE= (4000), RUN_DIR= output directory; relative paths start at the root of the repository. Further settings go to
# both pretrainings. To resume, run it again.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
: "${CORPUS:?set CORPUS= to files or a folder of text}"
run=${RUN_DIR:-runs/language_model}
export HF_HOME="${HF_HOME:-$PWD/.venv/huggingface}"  # keep downloads inside the checkout
bash docker/install.sh .venv
bertkit=.venv/bin/bertkit
same="model=tiny segments.max_seq_length=64 steps=4000 model.initializer_range=0.088 optimizer.peak_learning_rate=2e-3
  model.hidden_dropout_prob=0 model.attention_probs_dropout_prob=0 data_dir=$run/data"
echo "== prepare: text -> tokenizer and token shards"
$bertkit prepare corpus.path="$CORPUS" tokenizer.vocab_size="${VOCAB_SIZE:-4000}" output_dir="$run/data"
echo "== pretrain: each token predicts the next one, from those before it"
$bertkit pretrain experiment=language_model $same output_dir="$run/next_token" "$@"
echo "== pretrain: masked tokens are predicted, from both sides"
$bertkit pretrain experiment=language_model attention.pattern=full $same output_dir="$run/masked_lm" "$@"
echo "== predict: the first continues a text, the second fills a gap"
$bertkit predict model_dir="$run/next_token" text="She opened the door and" task.generation.max_target_length=12
$bertkit predict model_dir="$run/masked_lm" text="She opened the [MASK] and went out."
echo "== export: compare with BertLMHeadModel of transformers, then publish"
$bertkit export model_dir="$run/next_token" output_dir="$run/hugging_face"
