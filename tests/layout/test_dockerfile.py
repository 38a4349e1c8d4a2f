"""The image of a gateway and hub, read as a builder reads it: none runs here."""

import json
import os
import re
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from source_tree import ROOT
from typer.testing import CliRunner

from nearfar.orchestrator.cli import app

FILE = ROOT / "deploy" / "Dockerfile"
KNOWN = {
    "ARG",
    "CMD",
    "COPY",
    "ENTRYPOINT",
    "ENV",
    "EXPOSE",
    "FROM",
    "HEALTHCHECK",
    "LABEL",
    "RUN",
    "STOPSIGNAL",
    "USER",
    "VOLUME",
    "WORKDIR",
}
SECRET = re.compile(r"(?i)(api_?key|token|password|secret)\w*\s*=")

Instruction = tuple[str, str]


def instructions() -> list[Instruction]:
    """Return the instructions in order, with their arguments."""
    text = re.sub(r"^#.*\n", "", FILE.read_text(encoding="utf-8"), flags=re.MULTILINE).replace("\\\n", " ")
    parts = [line.split(maxsplit=1) for line in text.splitlines() if line.strip()]
    return [(name, argument) for name, argument in parts]


def stages() -> list[list[Instruction]]:
    found: list[list[Instruction]] = []
    for each in instructions():
        if each[0] == "FROM":
            found.append([])
        found[-1].append(each)
    return found


def copied(stage: list[Instruction]) -> list[str]:
    """Return the paths of the repository that a stage copies."""
    return [path for name, argument in stage if name == "COPY" and "--from" not in argument for path in argument.split()[:-1]]


def last(name: str) -> str:
    return [argument for kind, argument in instructions() if kind == name][-1]


def test_every_instruction_is_one() -> None:
    assert {name for name, _ in instructions()} <= KNOWN
    assert instructions()[0][0] == "FROM"


def test_images_have_versions() -> None:
    bases = [argument.split()[0] for name, argument in instructions() if name == "FROM"]
    assert [base for base in bases if not re.search(r":\d", base)] == []


def test_the_wheel_is_built_from_paths_that_exist_and_are_all_that_it_needs() -> None:
    build, _ = stages()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    needed = {*project["tool"]["setuptools"]["package-dir"].values(), *project["project"]["license-files"], project["project"]["readme"]}
    assert {*copied(build)} == needed | {"pyproject.toml"}
    assert [path for path in copied(build) if not (ROOT / path).exists()] == []


def test_the_builder_sees_what_is_copied_and_nothing_else() -> None:
    ignored = (FILE.parent / "Dockerfile.dockerignore").read_text(encoding="utf-8").split()
    assert ignored[0] == "*"
    assert {line.removeprefix("!") for line in ignored if line.startswith("!")} == {*copied(stages()[0])}


def test_the_image_has_no_tools_of_the_build_and_no_root() -> None:
    _, image = stages()
    assert copied(image) == []
    assert last("USER") not in ("0", "root")
    names = [name for name, _ in image]
    assert names.index("USER") > max(place for place, name in enumerate(names) if name in ("RUN", "COPY"))


def test_no_layer_holds_a_secret() -> None:
    assert [argument for name, argument in instructions() if name in ("ENV", "ARG", "RUN") and SECRET.search(argument)] == []


@pytest.mark.parametrize("name", ["ENTRYPOINT", "CMD"])
def test_commands_are_lists_and_get_signals_themselves(name: str) -> None:
    assert all(isinstance(word, str) for word in json.loads(last(name)))


def test_the_health_check_finds_a_port_that_listens() -> None:
    program, option, code = json.loads(last("HEALTHCHECK").partition(" CMD ")[2])
    assert (program, option) == ("python", "-c")
    with socket.create_server(("localhost", 0)) as listening:
        variables = {**os.environ, "PORT": f"1 {listening.getsockname()[1]}"}
        assert subprocess.run([sys.executable, "-c", code], env=variables, timeout=60).returncode == 0
    assert subprocess.run([sys.executable, "-c", code], env=variables, timeout=60).returncode == 1


def test_the_health_check_looks_for_a_gateway_and_for_a_hub() -> None:
    assert all(port in last("HEALTHCHECK") for port in last("EXPOSE").split())


def test_the_command_exists() -> None:
    assert json.loads(last("ENTRYPOINT")) == ["nearfar"]
    assert CliRunner().invoke(app, json.loads(last("CMD"))).exit_code == 0
    commands = re.findall(r"nearfar (serve \w+) (.*)", FILE.read_text(encoding="utf-8").replace("\\\n#", " "))
    assert [name for name, _ in commands] == ["serve gateway", "serve hub"]
    for name, options in commands:
        assert CliRunner().invoke(app, [*name.split(), *options.split(), "--help"]).exit_code == 0


def test_installed_extras_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    (named,) = re.findall(r'install --no-cache-dir "\.\[([\w,]+)\]"', FILE.read_text(encoding="utf-8"))
    assert set(named.split(",")) <= extras.keys()


def test_the_page_names_the_file() -> None:
    assert "Dockerfile" in Path(ROOT / "deploy" / "README.md").read_text(encoding="utf-8")
