"""The examples of providers and proxies in docs/far-models.md are valid."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from nearfar.cloud.config import ProviderConfig, build_provider

PAGE = (Path(__file__).parents[2] / "docs" / "far-models.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    found = re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)
    assert found
    return found


PROVIDERS = [far for block in blocks("toml") if "far" in (table := tomllib.loads(block)) and (far := table["far"])["provider"] != "gateway"]


def test_there_is_an_example_of_every_provider_and_proxy() -> None:
    assert {far["provider"] for far in PROVIDERS} == {"openai", "anthropic", "gemini"}
    assert len(PROVIDERS) >= 8


@pytest.mark.parametrize("far", PROVIDERS, ids=lambda far: far["model"])
def test_configuration_example_describes_an_agent(far: dict[str, object]) -> None:
    assert build_provider(ProviderConfig.model_validate(far)).card.model


@pytest.mark.parametrize("block", blocks("python"))
def test_python_example_runs(block: str, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", block], check=True, cwd=tmp_path, timeout=60)
