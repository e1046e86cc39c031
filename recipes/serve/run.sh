#!/usr/bin/env bash
# Serve one model or several: install, start, send requests with curl; then the web page, until Ctrl-C.
# MODEL_DIR= any model, or [A,B], PORT= (8000), INPUT= an input as JSON, RUN_DIR= directory for the responses, STAY=no ends after
# the requests; relative paths start at the root of the repository. Further settings go to serve.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
: "${MODEL_DIR:?set MODEL_DIR= to the directory of a model, or of several: [A,B]}"
run=${RUN_DIR:-runs/serve} port=${PORT:-8000} input=${INPUT:-'"The weather is [MASK] today."'}
url=http://127.0.0.1:$port
export HF_HOME="${HF_HOME:-$PWD/.venv/huggingface}"  # keep downloads inside the checkout

bash docker/install.sh .venv '[serve]'
mkdir -p "$run"
echo "== serve: $MODEL_DIR on $url"
.venv/bin/bertkit serve model_dir="$MODEL_DIR" port="$port" "$@" & server=$!
trap 'kill -TERM $server 2>/dev/null || true; wait $server' EXIT  # the server answers all accepted requests, then ends
until curl -sf -o "$run/models.json" "$url/models"; do kill -0 $server; sleep 0.2; done
echo "== requests: the served models, a prediction, and the number of metrics"
cat "$run/models.json" && echo
curl -sS --fail-with-body "$url/predict" -H 'Content-Type: application/json' -d "{\"inputs\": [$input]}" -o "$run/predictions.json" \
  || { cat "$run/predictions.json"; exit 1; }
cat "$run/predictions.json" && echo
curl -sSf "$url/metrics" -o "$run/metrics.txt" && grep -c '^bertkit' "$run/metrics.txt"
[ "${STAY:-yes}" = no ] || { echo "open $url in a browser; Ctrl-C stops the server"; wait $server; }
