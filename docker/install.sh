#!/usr/bin/env bash
# Install bertkit into a virtual environment: install.sh ENVIRONMENT [EXTRAS], for example install.sh .venv '[test]'
#
# If torch is already importable, this script keeps it. Otherwise it installs the standard build if there is an NVIDIA GPU or the
# system is not Linux, else a CPU build: from pip's local files if they have one, otherwise from PyTorch's own index.
# It uses uv if possible, otherwise pip. If everything is installed, it does nothing. PYTHON=python3.12 chooses the interpreter.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
environment=$1 extras=${2:-}
python=$environment/bin/python
pins=$root/docker/constraints.txt

say() { printf '== %s\n' "$*"; }
has_torch() { "$1" -c 'import torch' 2>/dev/null; }

# Use an existing package cache, but do not create one outside the checkout.
[ -d "${PIP_CACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/pip}" ] || export PIP_NO_CACHE_DIR=1
[ -d "${UV_CACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/uv}" ] || export UV_NO_CACHE=1

mkdir -p "$environment"
if command -v flock > /dev/null; then
  exec 9> "$environment/.bertkit-installing"
  flock -n 9 || { say "waiting: $environment is being installed, by this host or another"; flock 9; }
fi

stamp=$environment/.bertkit-installed"$extras"
wanted="$root $(cat "$root/pyproject.toml" "$pins" | cksum)"
if grep -qsxF "$wanted" "$stamp"; then
  say "installed already in $environment"
  exit 0
fi

outer=${PYTHON:-python3}
"$outer" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || {
  echo "error: $("$outer" --version) found; bertkit needs Python 3.11 to 3.13: set PYTHON=" >&2
  exit 2
}
if [ ! -x "$python" ]; then
  say "making the virtual environment $environment"
  "$outer" -m venv "$environment"
fi

installer=("$python" -m pip install --disable-pip-version-check -q)
torch_from=nowhere
if has_torch "$python"; then torch_from=environment; elif has_torch "$outer"; then torch_from=outside; fi
if [ $torch_from = outside ]; then
  say "keeping the torch of $("$outer" -c 'import sys; print(sys.prefix)')"
  packages=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  "$outer" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > "$packages/outer-torch.pth"
elif "${installer[@]}" -c "$pins" uv 2>/dev/null; then
  installer=("$python" -m uv pip install -q --python "$python")  # uv does not see packages of an outer environment
fi

if [ $torch_from = nowhere ]; then
  pip=("$python" -m pip install --disable-pip-version-check -q)
  torch=$(grep '^torch==' "$pins")
  if nvidia-smi -L >/dev/null 2>&1 || [ "$(uname -s)" != Linux ]; then
    say "installing torch"
    "${pip[@]}" torch
  elif "${pip[@]}" --no-index --no-deps "$torch" 2>/dev/null; then
    say "installed torch for the CPU from a local file"
  else
    say "installing torch for the CPU"
    "${pip[@]}" --index-url https://download.pytorch.org/whl/cpu "$torch"
  fi
fi

say "installing bertkit$extras"
others=$(mktemp)
trap 'rm -f "$others"' EXIT
grep -v '^torch==' "$pins" > "$others"
"${installer[@]}" -c "$others" -e "$root$extras"
printf '%s\n' "$wanted" > "$stamp"
