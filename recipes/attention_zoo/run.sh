#!/usr/bin/env bash
# Attention variants and norms in the same BERT: install, prepare, pretrain each with several seeds, show positions, compare on a page.
# CORPUS= your text, DATA_DIR= a GLUE folder (to fine-tune on SST-2 too), SEEDS= such as "0 1 2", STEPS= steps per run, RUN_DIR= output
# directory; relative paths start at the root of the repository. Further settings go to every pretrain. To resume, run it again.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
: "${CORPUS:?set CORPUS= to files or a folder of text}"
run=${RUN_DIR:-runs/attention_zoo}
export HF_HOME="${HF_HOME:-$PWD/.venv/huggingface}"  # keep downloads inside the checkout
options=(
  norm=post norm=pre norm.kind=rms attention.score={dot,general,additive,location}
  attention.positions={sinusoidal,relative,rotary,alibi,none}
  "attention.pattern=causal objective=masked_lm" "attention.pattern=window attention.window=8"
  "attention.pattern=bigbird attention.block_size=8 attention.random_blocks=1"
  "attention.pattern=linformer attention.compressed_size=16"
)
bash docker/install.sh .venv
bertkit=.venv/bin/bertkit
echo "== prepare: text -> tokenizer and token shards"
$bertkit prepare corpus.path="$CORPUS" tokenizer.vocab_size="${VOCAB_SIZE:-1000}" output_dir="$run/data"
for seed in ${SEEDS:-0 1 2}; do for option in "${options[@]}"; do
  name=${option%% *} && place="$run/${name//=/-}/seed_$seed" && echo "== pretrain: $option, seed $seed"
  $bertkit pretrain experiment=attention_zoo steps="${STEPS:-1500}" data_dir="$run/data" $option seed="$seed" output_dir="$place" "$@"
  [ -z "${DATA_DIR:-}" ] || $bertkit finetune task=sst2 data_dir="$DATA_DIR" num_epochs=0.3 model_dir="$place" seed="$seed" output_dir="${place}_sst2"
done; done
echo "== view: what positions say about distance"
for place in "$run"/{norm-post,attention.positions-{sinusoidal,rotary,relative,alibi}}; do name=${place##*-}  # BERT's are learned
  $bertkit view model_dir="$place/seed_$seed" positions=true output="$run/positions_${name/post/learned}.html" overwrite=true; done
echo "== compare: a table and a page"
$bertkit compare "$run"/*-*/seed_? output="$run/zoo.html" overwrite=true
