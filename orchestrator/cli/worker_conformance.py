"""`nearfar worker conform`: run the conformance suite of agents against a worker that is attached to this machine's hub.

It is for authors of workers in other languages: whatever transport the worker uses, it is reached as tasks reach it.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal
from unittest import SkipTest

import anyio
import typer
from rich.text import Text

from ...protocols import Agent, NearfarError, Side, ToolSpec
from ..compose.hub import AttachedConfig, HubConfig, list_workers, open_attached
from . import options
from .printing import Line, show
from .running import EXIT_FAILED, execute

if TYPE_CHECKING:
    from ...protocols.testing.agent_conformance import Check, Subject

_POLL_SECONDS: Final = 0.05
_STYLES: Final = {"passed": "green", "does not apply": "dim", "failed": "red"}
_TOOL: Final = ToolSpec(
    name="open",
    description="Open a section of a passage about a city, such as its mayor.",
    parameters={
        "type": "object",
        "properties": {"title": {"type": "string"}, "section": {"type": "string"}},
        "required": ["title", "section"],
    },
)
_SCHEMA: Final = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"], "additionalProperties": False}


@dataclass(frozen=True, slots=True)
class CheckOutcome:
    """The outcome of one check of the suite."""

    check: str
    outcome: Literal["passed", "does not apply", "failed"]
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompts:
    """The prompts that make a worker's model do each thing."""

    short: str
    long: str
    tool: str


def conform(
    worker: Annotated[str, typer.Argument(help="Name of a worker that is attached, as `worker list` shows it.")],
    prompt: Annotated[str, typer.Option(help="A prompt with a short answer.")] = "What is the mayor of Port Alder?",
    long_prompt: Annotated[str, typer.Option(help="A prompt with an answer of a hundred tokens or more.")] = "Count from 1 to 500.",
    tool_prompt: Annotated[
        str, typer.Option(help="A prompt that makes the model call the tool open(title, section).")
    ] = "What is the mayor of Port Alder?",
    seconds: Annotated[float, typer.Option(min=1, help="Seconds after which a check counts as hanging.")] = 120.0,
    config: options.Config = None,
    as_json: options.AsJson = False,
) -> None:
    """Check that an attached worker keeps the contract of agents, whatever language it is written in."""

    async def work() -> None:
        hub = options.read_section(config, "hub", HubConfig)
        prompts = Prompts(short=prompt, long=long_prompt, tool=tool_prompt)
        outcomes = await run_suite(hub, worker, prompts, seconds=seconds)
        failed = sum(found.outcome == "failed" for found in outcomes)
        data = {"worker": worker, "failed": failed, "checks": [asdict(found) for found in outcomes]}
        show(data, [*map(_line, outcomes)], as_json=as_json)
        if failed:
            raise typer.Exit(EXIT_FAILED)

    execute(work(), as_json=as_json)


async def run_suite(hub: HubConfig, worker: str, prompts: Prompts, *, seconds: float) -> list[CheckOutcome]:
    """Run every check against a worker, and return what became of each. Raises `Unavailable` if it is not attached, or there is no hub."""
    from ...protocols.testing.agent_conformance import CHECKS, SchemaUse, Subject, ToolUse

    async def create() -> Agent:
        return await open_attached(AttachedConfig(socket=hub.socket, worker=worker, side=Side.FAR))

    agent = await create()
    claims = agent.card.capabilities
    await agent.aclose()
    async with _live_steps(hub.socket, worker) as live:
        subject = Subject(
            create=create,
            prompt=prompts.short,
            long_prompt=prompts.long,
            tool_use=ToolUse(prompt=prompts.tool, tools=(_TOOL,), result="Vera Falk") if claims.tools else None,
            schema_use=SchemaUse(prompt=prompts.short, schema=_SCHEMA) if claims.json_schema else None,
            live_steps=lambda _: live[0],
            time_limit=seconds,
        )
        return [await _outcome(check, subject) for check in CHECKS]


async def _outcome(check: "Check", subject: "Subject") -> CheckOutcome:
    from ...protocols.testing.agent_conformance import run_check

    name = check.__name__
    try:
        await run_check(check, subject)
    except SkipTest as skipped:
        return CheckOutcome(name, "does not apply", str(skipped))
    except TimeoutError:
        return CheckOutcome(name, "failed", f"it did not end within {subject.time_limit:g} s")
    except (AssertionError, NearfarError) as error:
        return CheckOutcome(name, "failed", str(error))
    return CheckOutcome(name, "passed")


@asynccontextmanager
async def _live_steps(socket: Path, worker: str) -> AsyncIterator[list[int]]:
    """Yield a list whose only element is kept at the number of steps that the worker has not ended, as the hub knows it.

    Raises `Unavailable` when the hub ends meanwhile: the checks that are left would blame the worker.
    """
    live = [0]

    async def watch() -> None:
        while True:
            live[0] = sum(known.live_steps for known in await list_workers(socket) if known.name == worker)
            await anyio.sleep(_POLL_SECONDS)

    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch)
            yield live
            tasks.cancel_scope.cancel()
        await list_workers(socket)  # without a hub, the last checks fail sooner than the watch looks
    except ExceptionGroup as errors:  # the watch and the checks end together
        raise errors.exceptions[0] from None


def _line(found: CheckOutcome) -> Line:
    reason = f"  {found.reason}" if found.reason else ""
    return Text.assemble((f"{found.outcome:<15}", _STYLES[found.outcome]), found.check, (reason, "dim"))
