"""Each demo runs by the command in its README, offline, and prints what the README shows."""

import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("llguidance", reason="running models needs llama.cpp: pip install 'nearfar[llama]'")

ROOT = Path(__file__).parents[2]
DEMOS = sorted(main.parent for main in (ROOT / "demos").glob("*/main.py"))
NEEDS = {"routing_policy": "torch", "web_app": "fastapi"}
"""Demos that need a package beyond the extra `all`."""
WITHOUT_MODELS = {"two_devices"}
_STORY = re.compile(r"^```console\n\$ (python demos/[^\n]+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

by_name = pytest.mark.parametrize("demo", DEMOS, ids=lambda demo: demo.name)


@dataclass(frozen=True)
class Story:
    """The command of a README, and the output that stands below it. `...` in it stands for any text."""

    command: str
    output: str

    def is_told_by(self, printed: str) -> bool:
        return re.fullmatch(".*".join(map(re.escape, self.output.split("..."))), printed) is not None


def story_of(demo: Path) -> Story:
    stories = _STORY.findall((demo / "README.md").read_text(encoding="utf-8"))
    assert len(stories) == 1, f"{demo.name} has one command with its output"
    return Story(*stories[0])


def run(command: str, folder: Path, **variables: str) -> "subprocess.CompletedProcess[str]":
    """Run a README's command in a folder that holds the demos alone, without the variables that name models."""
    (folder / "demos").symlink_to(ROOT / "demos")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("NEARFAR_")}
    words = [sys.executable, *shlex.split(command)[1:]]
    return subprocess.run(words, cwd=folder, env=environment | variables, capture_output=True, text=True, encoding="utf-8", timeout=100)


@by_name
def test_demo_prints_what_its_readme_shows(demo: Path, tmp_path: Path) -> None:
    pytest.importorskip(NEEDS.get(demo.name, "nearfar"))
    story = story_of(demo)
    ended = run(story.command, tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert story.is_told_by(ended.stdout), ended.stdout
    assert os.listdir(tmp_path) == ["demos"], "it leaves no files behind"


@pytest.mark.parametrize("demo", [demo for demo in DEMOS if demo.name not in WITHOUT_MODELS], ids=lambda demo: demo.name)
def test_demo_asks_the_far_model_that_the_variable_names(demo: Path, tmp_path: Path) -> None:
    pytest.importorskip(NEEDS.get(demo.name, "nearfar"))
    ended = run(story_of(demo).command, tmp_path, NEARFAR_FAR="no-such-provider:model")
    assert "no-such-provider:model" in ended.stderr
    assert not story_of(demo).is_told_by(ended.stdout)


@by_name
def test_demo_is_short_enough_to_copy(demo: Path) -> None:
    lines = (demo / "main.py").read_text(encoding="utf-8").splitlines()
    assert 40 <= len(lines) <= 120
    assert not any("sleep" in line for line in lines)


@by_name
def test_readme_shows_its_own_command_and_one_picture(demo: Path) -> None:
    assert story_of(demo).command == f"python demos/{demo.name}/main.py"
    pictures = re.findall(r"!\[.+\]\((.+)\)", (demo / "README.md").read_text(encoding="utf-8"))
    assert pictures == ["picture.svg"]
    assert (demo / "picture.svg").is_file()


def test_langgraphs_server_is_told_of_a_graph_that_compiles(tmp_path: Path) -> None:
    told = json.loads((ROOT / "demos" / "langgraph_app" / "langgraph.json").read_text(encoding="utf-8"))["graphs"]["app"]
    file, _, name = told.partition(":")
    code = f"""
import asyncio, runpy
async def main():
    async with runpy.run_path({file!r})[{name!r}]() as graph:
        print(*sorted(graph.nodes))
asyncio.run(main())
"""
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT / "demos" / "langgraph_app", capture_output=True, text=True, timeout=60)
    assert ended.stdout == "__start__ approve ask_for_plan plan work\n", ended.stderr


def test_index_names_each_demo_once() -> None:
    index = (ROOT / "demos" / "README.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"\]\((\w+)/README\.md\)", index)) == [demo.name for demo in DEMOS]


def test_other_output_is_noticed() -> None:
    story = Story("python demos/errands/main.py", "paid: ... euros\nthe end\n")
    assert story.is_told_by("paid: 45 euros\nthe end\n")
    assert not story.is_told_by("paid: 45 euros\nthe end\nand more\n")
    assert not story.is_told_by("paid: 45 euros\npaid: 45 euros\nthe end\n")
