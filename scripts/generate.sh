#!/usr/bin/env bash
# generate.sh VENV [--check]: write the gRPC code of protocols/v1, or say whether the committed code is what would be written.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$1
check=${2:-}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The mapping gives protoc the path that the module has once installed; without it the stubs import a module that does not exist.
"$venv/bin/python" -m grpc_tools.protoc -Inearfar/protocols=protocols \
  --python_out="$work" --pyi_out="$work" --grpc_python_out="$work" nearfar/protocols/v1/{agent,hub,memory}.proto

if [[ $check == --check ]]; then
  for fresh in "$work"/nearfar/protocols/v1/*; do
    diff -u "protocols/v1/$(basename "$fresh")" "$fresh" || {
      echo "protocols/v1/$(basename "$fresh") does not match its .proto: run 'make generate' and commit the result" >&2
      exit 1
    }
  done
  echo "generated code: up to date"
else
  cp "$work"/nearfar/protocols/v1/* protocols/v1/
fi
