"""`nearfar chat`: talk to the agents, turn by turn."""

import asyncio
from typing import TYPE_CHECKING
from uuid import uuid4

import typer

from ...protocols import Message, NearfarError
from ..compose.config import Config
from . import options
from .approval import terminal_approver
from .printing import notes, output, show_error
from .run import show_end, show_task
from .running import load_langgraph, report_errors
from .selection import chosen_config, open_hybrid, warn_outside_world

_ENDINGS = ("exit", "quit", "/exit", "/quit", ":q", "exit()", "quit()")
"""Turns that end a chat. As prompts they would only cost money."""

if TYPE_CHECKING:
    from ..hybrid.arguments import TaskOptions
    from ..hybrid.hybrid import Hybrid

app = typer.Typer(add_completion=False)


@app.command()
def chat(
    config: options.Config = None,
    near: options.Near = None,
    far: options.Far = None,
    strategy: options.StrategyName = None,
    mode: options.ModeName = None,
    public: options.Public = False,
    tools: options.Tools = None,
) -> None:
    """Talk to the agents, turn by turn.

    Ctrl-C stops the current turn; at the prompt it ends the chat. If a turn fails, the chat goes on.
    """
    selection = options.AgentChoice(config, near, far, strategy, mode, public, tools)
    # The event loop runs only during a turn: a thread that waits for input could not be stopped.
    with report_errors(), asyncio.Runner() as runner:
        chosen = chosen_config(selection)
        hybrid = open_hybrid(selection, chosen, terminal_approver())
        try:
            load_langgraph()
            notes.print("end with exit or Ctrl-D", style="dim")
            _converse(runner, hybrid, chosen, {"session": uuid4().hex, **selection.stated})
        finally:
            runner.run(hybrid.aclose())


def _converse(runner: asyncio.Runner, hybrid: "Hybrid", config: Config, given: "TaskOptions") -> None:
    history: list[Message] = []
    while (said := _read_turn()) is not None:
        if not said.strip():
            continue
        if said.strip().lower() in _ENDINGS:
            return
        warn_outside_world(said, config)
        try:
            result = runner.run(show_task(hybrid, [*history, Message.user(said)], given))
        except NearfarError as error:
            show_error(error)
            continue
        except KeyboardInterrupt:
            notes.print("\nstopped; Ctrl-D ends the chat", style="dim")
            continue
        show_end(result)
        history += [Message.user(said), Message.assistant(result.text)]


def _read_turn() -> str | None:
    """Return the line that the user types; None at the end of input."""
    try:
        return output.input("> ")
    except EOFError:
        notes.print()
        return None
