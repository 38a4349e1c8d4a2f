#!/usr/bin/env bash
# bench.sh VENV: run every benchmark. Each prints one JSON document. DATA names the folder of recorded data that some of them take.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$1

declare -A recorded=([routing]=routing [drafting]=tools [cache]=cache [memory]=memory [compression]=.)

for benchmark in benchmarks/[a-z]*.py; do
  name=$(basename "$benchmark" .py)
  options=(--json)
  if [[ -n ${DATA:-} && -n ${recorded[$name]:-} ]]; then
    options+=(--data "$DATA/${recorded[$name]}")
  elif [[ $name == routing ]]; then
    echo "== $benchmark left out: it needs recorded outcomes (DATA=FOLDER make bench)"
    continue
  fi
  echo "== $benchmark"
  "$venv/bin/python" "$benchmark" "${options[@]}"
done
