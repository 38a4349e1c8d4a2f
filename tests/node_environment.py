"""The Node.js that `make node` installs, with buf, the gRPC packages for JavaScript, and the conformance suite of MCP."""

from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parent.parent
NODE_VENV: Final = ROOT / ".venv-node"


def node_environment() -> Path:
    """Return the environment's folder, or skip the test where it is missing."""
    if not (NODE_VENV / ".ready").exists():
        pytest.skip("Node.js and its packages are not installed: run `make node`, which says why where it fails")
    return NODE_VENV
