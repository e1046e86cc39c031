#!/usr/bin/env bash
# R-Drop, FreeLB, SMART and several tasks together beside plain fine-tuning: the first rows of tasks of GLUE, several seeds, a line for each run.
# DATA_DIR= a GLUE folder, MODEL_DIR= any model, FOLDERS="SST-2 MRPC CoLA QNLI", ROWS=, EPOCHS=, SEEDS= such as "0 1 2", RUN_DIR= output
# directory. To resume, run it again.
set -euo pipefail
: "${DATA_DIR:?set DATA_DIR= to a folder of GLUE}" "${MODEL_DIR:?set MODEL_DIR= to a model}"
run=${RUN_DIR:-runs/beside_plain} rows=${ROWS:-500}
export PYTHONPATH="$(dirname "${BASH_SOURCE[0]}")${PYTHONPATH:+:$PYTHONPATH}"
folders=(${FOLDERS:-SST-2 MRPC CoLA QNLI}) settings=("model_dir=$MODEL_DIR" "num_epochs=${EPOCHS:-3}" "data_dir=$run/data")
for folder in "${folders[@]}"; do
  mkdir -p "$run/data/$folder"
  head -n $((rows + 1)) "$DATA_DIR/$folder/train.tsv" >"$run/data/$folder/train.tsv"
  cp "$DATA_DIR/$folder/dev.tsv" "$run/data/$folder"
done
names="${folders[*],,}" names="${names//-/}"  # sst2 mrpc ...
TIMEFORMAT=%U  # processor time
train() {  # NAME COMMAND: run it, if it has not ended yet, and keep a line for each task with its scores and the time of the whole command
  [ ! -e "$run/$1.seconds" ] || return 0
  { time ${BERTKIT:-bertkit} "${@:2}" >"$run/$1.log" 2>&1; } 2>"$run/$1.seconds.part"
  for place in "$run/$1"/eval.json "$run/$1"/*/eval.json "$run/$1"/*/*/eval.json; do
    [ -e "$place" ] || continue
    scores=$(sed -nE 's/^  "(accuracy|f1|matthews_correlation)": ([-0-9.]*),?$/\1 \2/p' "$place" | paste -sd' ')
    echo "${place#"$run"/} $scores seconds $(tail -n 1 "$run/$1.seconds.part")" | tee -a "$run/rows.txt"
  done
  mv "$run/$1.seconds.part" "$run/$1.seconds"
}
seeds=(${SEEDS:-0 1 2})
for seed in "${seeds[@]}"; do for task in $names; do for objective in auto r_drop freelb smart; do
  train "${task}_${objective}_$seed" finetune "plugins=[my_objectives,adversarial]" objective="$objective" task="$task" "${settings[@]}" \
    seed="$seed" output_dir="$run/${task}_${objective}_$seed" "$@"
done; done; done
all="${seeds[*]}"
train together glue "tasks=[${names// /,}]" together=true "${settings[@]}" "seeds=[${all// /,}]" output_dir="$run/together" "$@"
