"""What is printed at a terminal."""

from io import StringIO

import pytest
from rich.text import Text

from nearfar.orchestrator.cli.running import HarmlessConsole

COMMANDS = "\x1b]52;c;cm0gLXJm\x07\x9b2J\r\u202ea\tb\nc"


@pytest.mark.parametrize("shown", [COMMANDS, Text(COMMANDS), Text.assemble(("error: ", "red"), COMMANDS)])
def test_what_somebody_else_wrote_is_no_command_to_a_terminal(shown: str | Text) -> None:
    terminal = StringIO()
    HarmlessConsole(file=terminal, force_terminal=True, color_system=None).print(shown, end="")
    assert "]52;c;" in terminal.getvalue()
    assert not set("\x1b\x07\x9b\r\u202e") & set(terminal.getvalue())


def test_what_goes_into_a_file_stays_as_it_is() -> None:
    file = StringIO()
    HarmlessConsole(file=file).print(Text("a\u202eb"), end="")
    assert file.getvalue() == "a\u202eb"
