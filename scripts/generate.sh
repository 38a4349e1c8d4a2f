#!/usr/bin/env bash
# generate.sh VENV [--check]: write the gRPC code of protocols/proto to protocols/v1, or say whether the committed code is what would be written.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$1
check=${2:-}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$venv/bin/python" -m grpc_tools.protoc -Iprotocols/proto \
  --python_out="$work" --pyi_out="$work" --grpc_python_out="$work" nearfar/v1/{agent,hub,memory}.proto
fresh=$work/nearfar/v1

# protoc names modules after the .proto files' path, which is that of their package (nearfar.v1) for clients in every language. The
# Python package lies elsewhere, and protoc has no option for that.
sed -i.original -e 's/^from nearfar\.v1 import /from . import /' -e "s/'nearfar\.v1\.\([a-z]*_pb2\)'/'nearfar.protocols.v1.\1'/" "$fresh"/*
rm "$fresh"/*.original

if [[ $check == --check ]]; then
  for file in "$fresh"/*; do
    diff -u "protocols/v1/$(basename "$file")" "$file" || {
      echo "protocols/v1/$(basename "$file") does not match its .proto: run 'make generate' and commit the result" >&2
      exit 1
    }
  done
  echo "generated code: up to date"
else
  cp "$fresh"/* protocols/v1/
fi
