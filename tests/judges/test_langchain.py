"""`ChatNearfar` passes LangChain's standard tests of a chat model, in an environment that has them."""

import os
import re
import subprocess
import sysconfig
from pathlib import Path

import pytest

from scripts.judges import JudgeMissingError, python_of

SUITE = Path(__file__).with_name("langchain_suite.py")
MOST_SKIPPED = 8
"""Kinds of parts that no agent reads (4), what this model does not offer (3), and the small model where llama.cpp is absent."""
OPTIONS = (
    *("-c", "/dev/null", "--rootdir", str(SUITE.parent), "--noconftest", "-rA", "-q"),
    *("-p", "no:anyio", "-p", "no:cacheprovider", "-p", "no:xdist", "--benchmark-disable"),
    *("-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=function"),
    *("--disable-socket", "--allow-unix-socket"),
)


def test_the_standard_suites_and_the_prebuilt_agent_pass_without_a_network(tmp_path: Path) -> None:
    try:
        python = python_of("langchain")
    except JudgeMissingError as missing:
        pytest.skip(str(missing))
    own = sysconfig.get_path("purelib")
    tmp_path.joinpath("sitecustomize.py").write_text(f"import site\n\nsite.addsitedir({own!r})\n")  # behind the judge's own packages
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [str(python), "-m", "pytest", *OPTIONS, str(SUITE)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    passed, skipped = (re.findall(rf"^{outcome}\b.*$", done.stdout, re.MULTILINE) for outcome in ("PASSED", "SKIPPED"))
    assert len(passed) >= 54
    assert len(skipped) <= MOST_SKIPPED
