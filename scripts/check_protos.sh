#!/usr/bin/env bash
# check_protos.sh VENV [--accept] [REPOSITORY]: lint the .proto files, and compare them with the contract that clients rely on.
#
# That contract is protocols/proto/baseline.binpb, so that a clone without tags or history has all that the comparison needs. --accept writes it
# again: after a release, and for a change that is meant to break clients.
set -euo pipefail
venv=$(realpath -m "$1")
shift
accept=
if [[ ${1:-} == --accept ]]; then
  accept=yes
  shift
fi
cd "${1:-$(dirname "$0")/..}"
baseline=protocols/proto/baseline.binpb

if [[ ! -e $venv/.ready ]]; then
  echo "buf: not installed, so the .proto files are not checked; 'make node' says why" >&2
  exit
fi
buf() {
  PATH="$venv/bin:$PATH" "$venv/node_modules/.bin/buf" "$@"
}

buf lint
if [[ -n $accept ]]; then
  buf build --exclude-source-info --output "$baseline"
  echo "buf: $baseline is the contract as it is now"
elif buf breaking --against "$baseline"; then
  echo "buf: the .proto files keep the contract"
else
  echo "This breaks clients in other languages. If it is meant: 'make accept-protos', and say in CHANGELOG.md what they have to do." >&2
  exit 1
fi
