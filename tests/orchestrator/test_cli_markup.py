"""Nothing that the commands print is read as markup: users' words and the names of sections stand there as they are."""

import ast
import re
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from rich.progress import TextColumn
from rich.table import Table
from rich.text import Text
from typer.testing import CliRunner

import nearfar.orchestrator.cli as cli
from nearfar.orchestrator.cli.running import HarmlessConsole, notes, output, show_error, spinner, warn
from nearfar.orchestrator.lab.replay.calibration import _notes
from nearfar.orchestrator.task.policy import Policy
from nearfar.protocols import ConfigError

PACKAGE = Path(cli.__file__).parents[2]
SOURCES = [path for room in ("protocols", "device", "cloud", "orchestrator") for path in (PACKAGE / room).rglob("*.py")]
TAG = re.compile(r"\[/?(dim|bold|italic|red|green|yellow|cyan|magenta)\b[^\]]*\]")
LOOKS_LIKE_A_TAG = re.compile(r"\[[a-z#/@][^\[\]{}\n]*\]")


def texts(path: Path) -> list[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def shown(console: Console, *objects: object) -> str:
    with console.capture() as capture:
        console.print(*objects, soft_wrap=True)
    return capture.get()


@pytest.mark.parametrize("console", [output, notes], ids=["output", "notes"])
def test_every_text_of_the_package_that_names_a_section_is_printed_as_it_is(console: Console) -> None:
    named = {text for path in SOURCES for text in texts(path) if LOOKS_LIKE_A_TAG.search(text) and text.isprintable()}
    assert len(named) > 100, "hints such as 'name it in [policy.router]'"
    for text in named:
        assert shown(console, text) == f"{text}\n"


def test_a_cell_and_a_heading_of_a_table_are_no_markup() -> None:
    table = Table("[near]", title="[memory]")
    table.add_row("[bold]mine[/bold]")
    printed = shown(output, table)
    assert all(text in printed for text in ("[near]", "[memory]", "[bold]mine[/bold]"))


def test_errors_hints_and_warnings_keep_what_looks_like_markup() -> None:
    with notes.capture() as capture:
        show_error(ConfigError("no [far]", hint="write [far]"))
        warn("see [policy.router]")
        with spinner("asking [near]", shown=True):
            pass
    assert all(text in capture.get() for text in ("no [far]", "write [far]", "see [policy.router]"))


def test_calibrate_says_in_which_section_a_head_is_named() -> None:
    printed = [shown(notes, Text(note, style="dim")) for note in _notes(Policy())]
    assert any("name it in [policy.router]." in text for text in printed)


def test_help_shows_the_sections_that_it_names() -> None:
    def shown_in_help(*words: str) -> str:
        return " ".join(CliRunner().invoke(cli.app, [*words, "--help"], env={"COLUMNS": "400"}).stdout.split())

    assert "a [roles.NAME] section" in shown_in_help("run")
    assert "with [runs] in the configuration" in shown_in_help("chat")
    assert "Default: [hub], or hub.pem." in shown_in_help("worker", "pair")
    assert "Default: [hub] tokens." in shown_in_help("serve", "hub")


def test_a_question_is_no_markup() -> None:
    written = StringIO()
    assert HarmlessConsole(file=written).input("a name [near] or :cat: ", stream=StringIO("far\n")) == "far\n"
    assert written.getvalue() == "a name [near] or :cat: "


def test_no_command_gives_a_style_as_markup() -> None:
    tagged = [f"{path.name}: {text}" for path in SOURCES for text in texts(path) if TAG.search(text)]
    assert tagged == []


def test_no_column_of_a_progress_bar_reads_markup() -> None:
    for path in (PACKAGE / "orchestrator" / "cli").glob("*.py"):
        for call in (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)):
            if isinstance(call.func, ast.Name) and call.func.id == TextColumn.__name__:
                assert any(keyword.arg == "markup" for keyword in call.keywords), path
