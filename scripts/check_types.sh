#!/usr/bin/env bash
# check_types.sh VENV: mypy --strict on nearfar as an installed wheel, then on what uses it.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$1

work=$(mktemp -d)
trap 'rm -rf "$work" build' EXIT
# setuptools would pack what an earlier build left there.
rm -rf build

"$venv/bin/python" -m pip wheel -qq --disable-pip-version-check --no-deps --wheel-dir "$work" .
"$venv/bin/python" -m pip install -qq --disable-pip-version-check --no-deps --force-reinstall "$work"/nearfar-*.whl

# From another folder: the repository's own protocols/ and device/ must not be found next to the installed ones.
repository=$PWD
cache=$PWD/.mypy_cache
(cd "$work" && "$repository/$venv/bin/mypy" --config-file "$repository/pyproject.toml" --cache-dir "$cache/wheel" \
  -p nearfar)

# pytest lets every folder of tests have a conftest; to mypy they would be one module, so each gets a run of its own.
rest=()
while read -r file; do rest+=("$file"); done < <(find train benchmarks tests -name '*.py' ! -name conftest.py | sort)
"$venv/bin/mypy" --cache-dir "$cache/rest" "${rest[@]}"
mapfile -t shared < <(find tests -name '*.py' ! -name conftest.py ! -name 'test_*' | sort)
for conftest in $(find tests -name conftest.py | sort); do
  "$venv/bin/mypy" --cache-dir "$cache/rest" "$conftest" "${shared[@]}"
done
