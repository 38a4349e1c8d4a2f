#!/usr/bin/env bash
# bench.sh VENV: run every benchmark. Each prints one JSON document.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$1

for benchmark in benchmarks/[a-z]*.py; do
  echo "== $benchmark"
  "$venv/bin/python" "$benchmark" --json
done
