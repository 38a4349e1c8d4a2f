"""Turn command-line options into a configuration and a `Hybrid`, whose tool calls the user at the terminal approves or denies."""

import importlib.util
import json
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio
from pydantic import ValidationError
from rich.text import Text

from ...protocols import ApprovalRequest, ConfigError
from ..compose import EMBEDDED, EMBEDDED_CONFIDENCE, LlamaConfig, NearConfig, parse_far, parse_near
from ..compose.config import Config, with_line
from ..task.foreign import as_tool
from ..task.modes import Mode, Strategy
from ..task.policy import Policy
from ..task.tools import Approver, Tool
from ..util.plugins import has_plugin
from ..util.runtime import run_in_daemon_thread
from ..util.text import spell_out
from .options import DEFAULT_CONFIG, AgentChoice, read_config
from .running import notes, output, warn

if TYPE_CHECKING:
    from ..compose.policy_file import PolicyFile
    from ..hybrid import Hybrid

DEMO_SEED = 2026
"""Seed of the tasks that `nearfar demo` draws and of the passages that the shipped models search."""
_LINE: Final = 4096
"""Largest number of bytes in a line of a terminal."""


def shipped_config() -> Config:
    """Return the configuration if no other is named: the two models of the demo, with the demo's threshold."""
    return Config(near=NearConfig(), far=parse_far("far"), policy=Policy(minimum_confidence=EMBEDDED_CONFIDENCE))


def chosen_config(selection: AgentChoice) -> Config:
    """Return the configuration with the options applied. Without either, it has the two models that ship with nearfar."""
    config = read_config(selection.config)
    if config is None:
        config = shipped_config() if selection.near is None and selection.far is None else Config()
    chosen = {
        "near": parse_near(selection.near) if selection.near else config.near,
        "far": parse_far(selection.far) if selection.far else config.far,
        "policy": _chosen_policy(selection, config.policy),
    }
    return config.model_copy(update=chosen)


def open_hybrid(selection: AgentChoice, config: Config, policy: "PolicyFile | None" = None) -> "Hybrid":
    """Open a `Hybrid`, which follows `policy` if it is given. The shipped models get the tools of their own world if no other tools are
    named."""
    from ..hybrid import Hybrid

    tools = load_tools(selection.tools) if selection.tools else []
    if not tools and not config.tools and _all_embedded(config):
        tools = list(_world_tools())
    try:
        return Hybrid.from_config(config, tools=tools, policy=policy or config.policy)
    except ConfigError as error:
        path = selection.config or DEFAULT_CONFIG
        raise (with_line(error, path) if path.is_file() else error) from error.__cause__


def warn_outside_world(prompt: str, config: Config) -> None:
    """Warn if a shipped model is asked something outside the world that it was trained in."""
    if not _some_embedded(config) or not prompt.strip():
        return
    from ..lab.worlds.loading import SearchWorld, understands

    if understands(prompt.strip()):
        return
    example = SearchWorld().tasks(1, DEMO_SEED)[0].prompt
    warn(
        "the models that ship with nearfar are tiny and know only the worlds that they were trained in; this prompt is outside them, so "
        f'the answer will be nonsense. Try "{example}", or name a real model: --near FILE.gguf, --far openai:MODEL'
    )


def _world_tools() -> Sequence[Tool]:
    """Return the tools of the search world, on the passages of the demo's first question."""
    from ..lab.worlds.loading import SearchWorld

    world = SearchWorld()
    return world.reset(world.tasks(1, DEMO_SEED)[0]).tools


def load_tools(path: Path) -> list[Tool]:
    """Return the `@tool` functions of a Python file, or the tools of a plugin of this name.

    Raises `ConfigError` if the file cannot be run or has none, or if the plugin cannot be used.
    """
    if not path.exists() and has_plugin("tools", str(path)):
        from ..hybrid.arguments import plugin_tools

        return plugin_tools([str(path)])
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        problem = f"{path} is not a Python file" if path.exists() else f"there is no {path}"
        raise ConfigError(problem, hint="--tools names a .py file with @tool functions, or a plugin")
    module = importlib.util.module_from_spec(spec)
    folder = str(path.absolute().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)  # as Python does for a script, so that the file can import its neighbours
    try:
        with output.keep_stdout():
            spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # the user's own program: an error in it is reported without a traceback
        raise ConfigError(f"{path} fails while it is loaded: {type(error).__name__}: {error}") from error
    tools = [value for value in map(as_tool, vars(module).values()) if value is not None]
    if not tools:
        raise ConfigError(f"{path} has no tools", hint="decorate a typed function: from nearfar import tool; @tool")
    return tools


def _chosen_policy(selection: AgentChoice, policy: Policy) -> Policy:
    changes = {"strategy": selection.strategy, "mode": selection.mode, "sensitivity": "public" if selection.public else None}
    given = {name: value for name, value in changes.items() if value is not None}
    try:
        return Policy.model_validate({**policy.model_dump(), **given})
    except ValidationError as error:
        wrong = [str(each["loc"][0]) for each in error.errors() if each["loc"]]
        named = " and ".join(f"--{name} cannot be {given[name]!r}" for name in wrong if name in given)
        known = f"strategies: {', '.join(Strategy)}; modes: {', '.join(Mode)}"
        raise ConfigError(named or str(error), hint=known) from error


def _models(config: Config) -> list[str | None]:
    """Return the local model of each configured side; None for a side that runs something else."""
    sides = [side for side in (config.near, config.far) if side is not None]
    return [side.model if isinstance(side, LlamaConfig) else None for side in sides]


def _all_embedded(config: Config) -> bool:
    return all(model in EMBEDDED for model in _models(config))


def _some_embedded(config: Config) -> bool:
    return any(model in EMBEDDED for model in _models(config))


def terminal_approver() -> Approver | None:
    """Return an approver that asks about one call after the other, or None if there is no terminal."""
    return _Terminal().ask if sys.stdin.isatty() and sys.stderr.isatty() else None


class _Terminal:
    def __init__(self) -> None:
        self._turn = anyio.Lock()

    async def ask(self, requests: Sequence[ApprovalRequest]) -> dict[str, bool]:
        async with self._turn:  # parts of a task may ask at the same time
            return {request.id: await run_in_daemon_thread(partial(_ask, request)) is True for request in requests}


def _ask(request: ApprovalRequest) -> bool:
    """Show the call and return True if the user types y or yes. An empty line or the end of input denies it."""
    notes.print(Text(f"\n{spell_out(request.reason)}:", style="bold yellow"), soft_wrap=True)
    shown = call_text(request)
    notes.print(Text(f"  {shown}"), soft_wrap=True)
    terminal = sys.stdin.fileno()
    _drop_typed(terminal)  # what was typed before the question answers nothing
    # A call that fills the screen could end in text that looks like another call, so its name and length are repeated.
    notes.print(f"run {request.call.name}, the {len(shown):,} characters above? y/N ", end="")
    # Not through `sys.stdin`: a thread waiting in there would keep the program from ending.
    return os.read(terminal, _LINE).decode(errors="replace").strip().lower() in ("y", "yes")


def _drop_typed(terminal: int) -> None:
    """Drop what was typed at a terminal and not read yet."""
    if sys.platform == "win32":
        import msvcrt

        while msvcrt.kbhit():
            msvcrt.getwch()
    else:
        import termios

        termios.tcflush(terminal, termios.TCIFLUSH)


def call_text(request: ApprovalRequest) -> str:
    """Return the whole call in one line, control characters written out: a call that is cut off cannot be judged."""
    arguments = json.dumps(request.call.arguments, ensure_ascii=False)
    return spell_out(f"{request.call.name} {arguments}")
