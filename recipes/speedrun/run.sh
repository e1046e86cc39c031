#!/usr/bin/env bash
# The record: install, prepare, measure the speed of every row by turns, train Hugging Face with three rates and every row, print the table.
# CORPUS= your text, BLIMP= the folder of BLiMP's pairs, MINUTES= of Hugging Face's training (60), SEEDS= of Hugging Face, mini and modern_mini
# ("0 1 2"), RUN_DIR= output directory; relative paths start at the root of the repository. Every run adds its line to
# runs.jsonl in RUN_DIR as it ends.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
: "${CORPUS:?set CORPUS= to files or a folder of text}"
run=${RUN_DIR:-runs/speedrun} minutes=${MINUTES:-60}
bash docker/install.sh .venv
record=(.venv/bin/python recipes/speedrun/speedrun.py --record "$run")
.venv/bin/bertkit prepare corpus.path="$CORPUS" tokenizer.vocab_size=8192 held_out_prob=0.05 output_dir="$run/data"
[ -e "$run/speed.json" ] || "${record[@]}" speed "$run/data"
steps=$("${record[@]}" steps-in "$minutes")
for row in hugging_face hugging_face_wide; do for rate in 1e-4 2e-4 5e-4; do
  "${record[@]}" train "$run/data" $row --rate $rate --steps "$steps" --output "$run"; done; done
for row in hugging_face_no_dropout hugging_face_modern; do for rate in 5e-4 1e-3 2e-3; do
  "${record[@]}" train "$run/data" $row --rate $rate --steps "$steps" --output "$run"; done; done
for seed in ${SEEDS:-0 1 2}; do for row in hugging_face_wide mini modern_mini; do
  "${record[@]}" train "$run/data" $row --seed "$seed" --steps "$steps" --output "$run"; done; done
"${record[@]}" train "$run/data" muon --steps "$steps" --output "$run"
for row in "mini from scratch" narrow "no dropout" "30 % masked" pre-norm rotary glu; do "${record[@]}" train "$run/data" "$row" --steps "$steps" --output "$run"; done
[ -z "${BLIMP:-}" ] || { "${record[@]}" grammar "$BLIMP" --pairs 20 --output "$run"; "${record[@]}" grammar "$BLIMP" --last --output "$run"; }
"${record[@]}" table
