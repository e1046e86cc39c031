#!/usr/bin/env bash
# A large text on a Dask cluster: install, prepare a shard in each task, merge them.
# SCHEDULER= tcp://host:port, CORPUS= text, VOCABULARY= vocab.txt, RUN_DIR= the dataset, SHARDS= number of shards; all workers need
# the same paths. Further settings go to prepare. To resume with the missing shards, run it again.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
: "${SCHEDULER:?set SCHEDULER= to the address of a Dask scheduler}" "${CORPUS:?set CORPUS= to a folder of text}"
: "${VOCABULARY:?set VOCABULARY= to a vocab.txt or the tokenizer/ of a prepared dataset}"

bash docker/install.sh .venv '[dask]'

echo "== prepare: a task for each shard, then the merge"
.venv/bin/python recipes/prepare_on_dask/prepare.py "$SCHEDULER" "${SHARDS:-64}" "${RUN_DIR:-runs/prepare_on_dask}" \
  corpus.path="$CORPUS" tokenizer.path="$VOCABULARY" "$@"
