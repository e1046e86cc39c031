#!/usr/bin/env bash
# R-Drop, FreeLB and SMART beside plain fine-tuning: the first rows of SST-2 and MRPC, several seeds, a line for each run as it ends.
# DATA_DIR= a GLUE folder, MODEL_DIR= any model, ROWS=, EPOCHS=, SEEDS= such as "0 1 2", RUN_DIR= output directory. To resume, run it again.
set -euo pipefail
: "${DATA_DIR:?set DATA_DIR= to a folder of GLUE}" "${MODEL_DIR:?set MODEL_DIR= to a model}"
run=${RUN_DIR:-runs/beside_plain} rows=${ROWS:-500}
export PYTHONPATH="$(dirname "${BASH_SOURCE[0]}")${PYTHONPATH:+:$PYTHONPATH}"
for folder in SST-2 MRPC; do
  mkdir -p "$run/data/$folder"
  head -n $((rows + 1)) "$DATA_DIR/$folder/train.tsv" >"$run/data/$folder/train.tsv"
  cp "$DATA_DIR/$folder/dev.tsv" "$run/data/$folder"
done
TIMEFORMAT=%U  # processor time
for task in sst2 mrpc; do for seed in ${SEEDS:-0 1 2}; do for objective in auto r_drop freelb smart; do
  place="$run/${task}_${objective}_$seed"
  [ ! -e "$place/eval.json" ] || continue
  seconds=$( { time ${BERTKIT:-bertkit} finetune "plugins=[my_objectives,adversarial]" objective="$objective" task="$task" \
    data_dir="$run/data" model_dir="$MODEL_DIR" num_epochs="${EPOCHS:-2}" seed="$seed" output_dir="$place" "$@" >"$place.log" 2>&1; } 2>&1 )
  accuracy=$(sed -n 's/^  "accuracy": \([0-9.]*\),$/\1/p' "$place/eval.json")
  echo "$task $objective seed $seed accuracy $accuracy seconds $seconds" | tee -a "$run/rows.txt"
done; done; done
