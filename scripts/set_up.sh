#!/usr/bin/env bash
# set_up.sh VENV PIP_ARGUMENT...: make the virtual environment if it is missing, and install into it as scripts/install.py says.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$1
shift

suitable() {
  "$1" -c 'import sys; raise SystemExit(sys.version_info < (3, 11))' 2>/dev/null
}

find_python() {
  local candidate
  local candidates=${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11 python}
  for candidate in $candidates; do
    if suitable "$candidate"; then
      command -v "$candidate"
      return
    fi
  done
  echo "nearfar needs Python 3.11 or newer; none of these is: $candidates" >&2
  echo "Install one, or name it: make PYTHON=/path/to/python3.12 ..." >&2
  return 1
}

make_venv() {
  local python
  python=$(find_python)
  echo "making $venv with $("$python" --version)"
  "$python" -m venv --clear "$venv" || {
    echo "The standard library's venv failed. On Debian and Ubuntu: apt install python3-venv" >&2
    return 1
  }
}

# What an interrupted pip has left half installed cannot be mended.
if [[ -e $venv/.installing ]] || ! suitable "$venv/bin/python" || ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
  make_venv
fi

if [[ "$*" == *.\[* ]]; then
  rm -rf build # setuptools would install what an earlier build left there
fi
# llama.cpp is built on one core unless told otherwise.
export CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-$(getconf _NPROCESSORS_ONLN)}
exec "$venv/bin/python" scripts/install.py "$@"
