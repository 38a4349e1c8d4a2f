"""A new user's walk: every command and every example of docs/start.md, from the built wheel and in an empty folder."""

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from built_wheel import build_wheel, environment_with
from pages import ROOT, Block, blocks_of

pytest.importorskip("llama_cpp", reason="the page's models need llama.cpp")

START = ROOT / "docs" / "start.md"
PRINTS = re.compile(r"# prints: (.+)$", re.MULTILINE)
DONE_BEFORE = re.compile(r'pip install "nearfar\[all\]"|git clone .*|make demo')
"""The wheel is installed already; `make demo` is the checkout's, and has tests of its own."""
OWN_NAMES = {"/models/qwen.gguf": "near", "anthropic:claude-sonnet-5-5": "far", "YOUR_KEY": "unused-key"}
"""The reader's own models and keys, and what takes their place here: the models that ship with nearfar."""
BLOCKS = [block for block in blocks_of(START) if block.language in ("console", "python")]


@dataclass(frozen=True)
class NewUser:
    """An empty folder, and an environment that has the wheel."""

    folder: Path
    commands: Path

    def run(self, *command: str) -> "subprocess.CompletedProcess[str]":
        home = self.folder.parent / "home"
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("NEARFAR_", "PYTHON"))}
        environment = {**kept, "PATH": f"{self.commands}:{os.environ['PATH']}", "HOME": str(home), "XDG_DATA_HOME": str(home)}
        return subprocess.run(
            command, cwd=self.folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=110
        )


@pytest.fixture(scope="module")
def new_user(tmp_path_factory: pytest.TempPathFactory) -> NewUser:
    folder = tmp_path_factory.mktemp("walk")
    wheel = build_wheel(tmp_path_factory.mktemp("copy"))
    for name in ("empty", "home"):
        (folder / name).mkdir()
    return NewUser(folder / "empty", environment_with(wheel, folder / "environment"))


def test_the_installed_package_is_that_of_the_wheel(new_user: NewUser) -> None:
    where = new_user.run(
        "python", "-c", "import nearfar, nearfar.orchestrator.cli as cli; print(nearfar.__file__, cli.__file__)"
    ).stdout.split()
    environment = str(new_user.commands.parent)
    assert [path.startswith(environment) for path in where] == [True, True]


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: f"{block.name}-{block.language}")
def test_a_new_user_can_do_what_the_page_shows(block: Block, new_user: NewUser) -> None:
    done = new_user.run("bash", "-ec", script_of(block)) if block.language == "console" else run_example(block, new_user)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    if block.language == "python":
        assert set(PRINTS.findall(block.code)) <= set(done.stdout.splitlines())


def test_the_walk_skips_nothing_else() -> None:
    shown = [line for block in BLOCKS if block.language == "console" for line in script_of(block).splitlines()]
    assert {line.split()[0] for line in shown if line} <= {"nearfar", "export"}


def script_of(block: Block) -> str:
    """Return the commands of a block that run here, one a line."""
    lines = [line.removeprefix("$ ") for line in block.code.replace("\\\n", " ").splitlines() if line.startswith("$ ")]
    script = "\n".join(
        part for line in lines for part in line.split(" && ") if not DONE_BEFORE.fullmatch(part) and not part.startswith("cd ")
    )
    for own, ours in OWN_NAMES.items():
        script = script.replace(own, ours)
    return script


def run_example(block: Block, user: NewUser) -> "subprocess.CompletedProcess[str]":
    name = block.file_name or "example.py"
    (user.folder / name).write_text(block.code, encoding="utf-8")
    command = ("python", "-m", "pytest", "-q", name) if name.startswith("test_") else ("python", name)
    return user.run(*command)
