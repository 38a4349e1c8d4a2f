"""The compatibility kit of the A2A project (a2aproject/a2a-tck, branch 1.0-dev), where a checkout of it is named.

    A2A_TCK=CHECKOUT A2A_TCK_PYTHON=PYTHON pytest tests/a2a/test_a2a_kit.py

PYTHON runs the kit, and has what the kit's pyproject.toml names.
"""

import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

pytest.importorskip("a2a", reason="A2A is an extra: pip install 'nearfar[a2a]'")

KIT = os.environ.get("A2A_TCK", "")
_KNOWN = {
    "test_response_content_type": "wants application/json; since 1.0.1 it is application/a2a+json",
    "test_push_not_supported_returns_unimplemented": "wants UNIMPLEMENTED; since 1.0.1 it is FAILED_PRECONDITION",
    "test_version_not_supported_returns_unimplemented": "wants UNIMPLEMENTED; since 1.0.1 it is FAILED_PRECONDITION",
    **dict.fromkeys(
        (f"test_must_requirement[CORE-SEND-003-{transport}]" for transport in ("grpc", "jsonrpc", "http_json")),
        "sends a file of an unknown type, and takes the error that the requirement demands for a failure",
    ),
}
"""Tests of the kit that fail, with the reason."""
_LEAST_PASSED = 188


@pytest.mark.skipif(not KIT, reason="A2A_TCK names no checkout of a2aproject/a2a-tck")
@pytest.mark.timeout(600)
def test_the_kit_finds_nothing_but_its_own_mistakes(tmp_path: Path) -> None:
    command = [sys.executable, str(Path(__file__).parent / "tck_agent.py"), "0", "0", str(tmp_path / "runs")]
    report = tmp_path / "report.xml"
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as agent:
        try:
            assert agent.stdout is not None
            python, url = os.environ.get("A2A_TCK_PYTHON", sys.executable), agent.stdout.readline().strip()
            kit = [python, "run_tck.py", "--sut-host", url, "--level", "must", "--transport", "grpc,jsonrpc,http_json"]
            subprocess.run([*kit, "--", f"--junitxml={report}"], cwd=KIT, check=False, timeout=500)
        finally:
            agent.terminate()
    cases = list(ElementTree.parse(report).iter("testcase"))
    failed = {case.get("name") for case in cases if case.find("failure") is not None or case.find("error") is not None}
    skipped = [case for case in cases if case.find("skipped") is not None]
    assert failed <= set(_KNOWN), failed - set(_KNOWN)
    assert len(cases) - len(failed) - len(skipped) >= _LEAST_PASSED
