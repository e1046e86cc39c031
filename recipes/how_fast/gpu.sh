#!/usr/bin/env bash
# bertkit beside Hugging Face on a GPU: all rows, or those of a part: PART=1, 2, 3 or 4, each of at most nine minutes.
# RUN_DIR= output directory (runs/gpu), with results.json and results.md; to resume, run it again.
# INSTALL=no takes the python3 that is there, with its packages. Arguments go to gpu.py: names of rows, --again, --device cpu.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
run=${RUN_DIR:-runs/gpu}
python=.venv/bin/python
if [ "${INSTALL:-yes}" = no ]; then python=python3; else bash docker/install.sh .venv '[test]'; fi
mkdir -p "$run"
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" HF_HUB_OFFLINE=1
export TORCHINDUCTOR_CACHE_DIR; TORCHINDUCTOR_CACHE_DIR="$(cd "$run" && pwd)/compiled"  # compiled code, kept for the next start
exec "$python" recipes/how_fast/gpu.py --output-dir "$run" ${PART:+--part "$PART" --seconds 520} "$@"
