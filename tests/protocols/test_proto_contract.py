"""buf checks the .proto files: their style, and that clients in other languages go on to work."""

import shutil
import subprocess
from pathlib import Path

import pytest
from node_environment import ROOT, node_environment

SCRIPT = ROOT / "scripts" / "check_protos.sh"
FINISHED = "message Finished {\n  FinishReason reason = 1;\n"


def check(venv: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", str(SCRIPT), str(venv), *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A repository with nothing but the .proto files and the rules for them."""
    shutil.copy(ROOT / "buf.yaml", tmp_path)
    shutil.copytree(ROOT / "protocols" / "proto", tmp_path / "protocols" / "proto")
    return tmp_path


def change(repository: Path, old: str, new: str) -> None:
    file = repository / "protocols" / "proto" / "nearfar" / "v1" / "agent.proto"
    text = file.read_text(encoding="utf-8")
    assert text.count(old) == 1
    file.write_text(text.replace(old, new), encoding="utf-8")


def test_the_files_follow_the_rules_and_keep_the_contract() -> None:
    result = check(node_environment())
    assert result.returncode == 0, result.stdout + result.stderr
    assert "keep the contract" in result.stdout


def test_a_field_with_another_number_breaks_the_contract_until_that_is_accepted(copy: Path) -> None:
    venv = node_environment()
    change(copy, FINISHED, FINISHED.replace("= 1", "= 99"))
    refused = check(venv, str(copy))
    assert refused.returncode == 1
    assert "agent.proto" in refused.stdout
    assert '"Finished"' in refused.stdout
    assert "make accept-protos" in refused.stderr
    assert check(venv, "--accept", str(copy)).returncode == 0
    assert check(venv, str(copy)).returncode == 0


def test_a_further_field_keeps_the_contract(copy: Path) -> None:
    change(copy, FINISHED, FINISHED + "  string note = 900;\n")
    assert check(node_environment(), str(copy)).returncode == 0


def test_a_name_against_the_rules_is_refused(copy: Path) -> None:
    change(copy, FINISHED, FINISHED + "  string loudNote = 900;\n")
    refused = check(node_environment(), str(copy))
    assert refused.returncode != 0
    assert "lower_snake_case" in refused.stdout


def test_without_buf_the_check_says_that_it_is_left_out(tmp_path: Path) -> None:
    result = check(tmp_path / "none")
    assert result.returncode == 0
    assert "not checked" in result.stderr
