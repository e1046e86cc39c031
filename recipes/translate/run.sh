#!/usr/bin/env bash
# Translators: Transformers, recurrent models with and without attention, LSTMs, a pair of BERTs: install, train each with several seeds,
# compare, draw an alignment. DATA_DIR= train.tsv and dev.tsv, SOURCE= and TARGET= their columns (en, de), SEEDS= such as "0 1 2",
# EPOCHS= a number per model or one for all, MODEL_DIR= the BERT for the pair (otherwise one is pretrained for STEPS=, 3000), VOCAB_SIZE= (8000),
# TEXT= to align, RUN_DIR= output directory, from the root of the repository. Further settings go to every finetune. To resume, run it again.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
: "${DATA_DIR:?set DATA_DIR= to the folder of train.tsv and dev.tsv}"
run=${RUN_DIR:-runs/translate} from=${SOURCE:-en} to=${TARGET:-de} seeds=${SEEDS:-0 1 2} size=tokenizer.vocab_size=${VOCAB_SIZE:-8000}
read -r sinusoidal additive dot none bert lstm local_p relative <<< "${EPOCHS:-5 4.7 5.9 6.5 5.45 6.3 4.6 4.1}"
export HF_HOME="${HF_HOME:-$PWD/.venv/huggingface}" bertkit=.venv/bin/bertkit  # keep downloads inside the checkout
bash docker/install.sh .venv '[generation]'
train() { for seed in $seeds; do echo "== finetune: $1, seed $seed"  # arguments: name, epochs, settings
  $bertkit finetune task=translation data_dir="$DATA_DIR" task.columns.source="$from" task.columns.target="$to" task.generation.num_beams=1 \
    num_epochs="${2:-$sinusoidal}" evaluation.every_steps=100000 seed="$seed" output_dir="$run/$1/seed_$seed" "${@:3}"; done; }
new="model=tiny tokenizer=wordpiece $size schedule=noam" recurrent="decoder=rnn model.num_hidden_layers=1" one_way="decoder.cell=lstm decoder.bidirectional=false" pair=""
for each in sinusoidal relative; do train "transformer_$each" "${!each}" decoder=transformer attention.positions=$each $new "$@"; done
for each in additive dot none; do train "rnn_$each" "${!each}" $new $recurrent decoder.score=$each "$@"; done
for each in false true; do train "lstm_reversed_$each" "$lstm" $new $recurrent $one_way decoder.score=none decoder.reverse_source=$each "$@"; done
train lstm_local_p "$local_p" $new $recurrent $one_way decoder.score=local_p decoder.input_feeding=true "$@"
if [ -z "${MODEL_DIR:-}" ]; then echo "== pretrain: a tiny BERT on the texts of both sides" && mkdir -p "$run"
pick='NR == 1 { for (i = 1; i <= NF; i++) at[$i] = i; next } { print $at[a] "\n" $at[b] "\n" }' pair="schedule=noam optimizer.peak_learning_rate=2.8e-3"
awk -F'\t' -v a="$from" -v b="$to" "$pick" "$DATA_DIR/train.tsv" > "$run/both_sides.txt"
$bertkit prepare corpus.path="$run/both_sides.txt" "$size" tokenizer.lowercase=false output_dir="$run/data"
$bertkit pretrain data_dir="$run/data" model=tiny segments=full_sentences segments.max_seq_length=64 steps="${STEPS:-3000}" batch.sequences=64 \
  model.initializer_range=0.088 model.scale_outputs=false model.hidden_dropout_prob=0.1 model.attention_probs_dropout_prob=0.1 masking.probability=0.15 \
  optimizer.peak_learning_rate=2e-3 optimizer.beta2=0.999 optimizer.bias_correction=true schedule.warmup_share=0.1 output_dir="$run/bert_start"; fi
train bert "$bert" decoder=bert model_dir="${MODEL_DIR:-$run/bert_start}" $pair "$@"
echo "== compare: a table and a page; view: the source words that each target word attends to"
$bertkit compare "$run"/*/seed_? output="$run/translators.html" overwrite=true
$bertkit view model_dir="$run/rnn_additive/seed_${seeds%% *}" text="${TEXT:-The file could not be opened.}" output="$run/alignment.svg" overwrite=true
