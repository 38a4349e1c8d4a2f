"""Every Python example of the documentation runs, and prints what its comments say; `test_start_page` runs those of docs/start.md."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from pages import Block, blocks, blocks_of

PRINTS = re.compile(r"# prints: (.+)$", re.MULTILINE)
BLOCKS = [block for block in blocks("python") if block.page.name != "start.md"]


def run(block: Block, folder: Path) -> "subprocess.CompletedProcess[str]":
    """Run a block as a program, or with pytest where it is a file of tests, beside the files that its page has named before it."""
    for earlier in blocks_of(block.page):
        if earlier.file_name and earlier.line < block.line:
            folder.joinpath(earlier.file_name).write_text(earlier.code, encoding="utf-8")
    path = folder / (block.file_name or "example.py")
    path.write_text(block.code, encoding="utf-8")
    is_test = path.name.startswith("test_")
    command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", path.name] if is_test else [path.name]
    return subprocess.run([sys.executable, *command], cwd=folder, capture_output=True, text=True, timeout=300)


def test_there_are_examples() -> None:
    assert len(BLOCKS) >= 8
    assert any(block.page.name == "README.md" for block in BLOCKS)


@pytest.mark.timeout(330)
@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.name)
def test_example_runs(block: Block, tmp_path: Path) -> None:
    result = run(block, tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    printed = result.stdout.splitlines()
    for expected in PRINTS.findall(block.code):
        assert expected in printed


def test_the_example_of_the_readme_finds_the_answer(tmp_path: Path) -> None:
    first = next(block for block in BLOCKS if block.page.name == "README.md")
    assert first.line + first.code.count("\n") < 40
    assert run(first, tmp_path).stdout.startswith("Port Selby |")
