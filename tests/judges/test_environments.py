"""The environments of the judges: what stands there, and what is said where one does not."""

import subprocess
import sys
from pathlib import Path

import pytest

from scripts import judges


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NEARFAR_JUDGES", str(tmp_path))
    return tmp_path


def test_a_judge_that_was_never_made_is_missing_with_what_to_do() -> None:
    with pytest.raises(judges.JudgeMissingError, match=r"litellm\[proxy\]==.*make judges"):
        judges.python_of("litellm")


def test_a_judge_that_pip_cannot_install_is_missing_with_pips_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(judges.JUDGES, "openai", "./no/such/package==1")
    judges.main(["openai"])
    assert "no/such/package" in capsys.readouterr().err
    with pytest.raises(judges.JudgeMissingError, match="Invalid requirement"):
        judges.python_of("openai")


def test_a_judge_that_is_there_is_not_installed_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(subprocess, "run", pytest.fail)
    home = folder / f"openai-{judges.JUDGES['openai'].partition('==')[2]}-{sys.implementation.cache_tag}"
    home.mkdir()
    (home / "ready").touch()
    judges.main(["openai"])
    assert judges.python_of("openai") == home / "bin" / "python"
    assert capsys.readouterr() == ("", "")


def test_an_unknown_judge_is_named() -> None:
    with pytest.raises(SystemExit, match="no such judge: nobody"):
        judges.main(["nobody"])
