"""The contract can be imported without the machinery that only parts of it need."""

import subprocess
import sys

import pytest

HEAVY = ["grpc", "google.protobuf", "jsonschema", "langgraph", "llama_cpp", "httpx"]


@pytest.mark.parametrize("module", ["nearfar.protocols", "nearfar.protocols.validation"])
def test_contract_loads_nothing_heavy(module: str) -> None:
    script = f"import sys, {module}; print([name for name in {HEAVY!r} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.strip() == "[]"
