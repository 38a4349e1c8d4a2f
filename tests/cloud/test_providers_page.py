"""The examples of docs/providers.md and docs/proxies.md are valid."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from nearfar.cloud.config import ProviderConfig, build_provider

PAGE = "\n".join((Path(__file__).parents[2] / "docs" / page).read_text(encoding="utf-8") for page in ("providers.md", "proxies.md"))


def blocks(language: str) -> list[str]:
    found = re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)
    assert found
    return found


@pytest.mark.parametrize("block", blocks("toml"))
def test_configuration_example_describes_an_agent(block: str) -> None:
    agent = build_provider(ProviderConfig.model_validate(tomllib.loads(block)["far"]))
    assert agent.card.model


@pytest.mark.parametrize("block", blocks("python"))
def test_python_example_runs(block: str, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", block], check=True, cwd=tmp_path, timeout=60)
