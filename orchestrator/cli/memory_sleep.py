"""`nearfar memory sleep`: consolidate what is remembered, in batches that can be reverted."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from ...protocols import Agent, NotFound
from ...protocols.items import namespace_text, parse_namespace
from ..compose.agents import near_handle, read_device_state
from ..memory.consolidation.consolidator import Consolidator
from ..memory.consolidation.journal import ConsolidationBatch, ConsolidationJournal, ConsolidationResult, journals, scopes
from ..memory.reading import address_text
from ..task.stores import MemoryConfig
from ..util.escaping import printable
from . import options
from .memory_store import Prefix, Store, StoreChoice, open_store
from .printing import Line, Note, count_text, print_json, show, spinner, table, warn
from .running import report_errors

if TYPE_CHECKING:
    from ...protocols.items import Namespace
    from ..memory.store import MemoryStore

BatchName = Annotated[str, typer.Argument(metavar="BATCH", help="Id of the batch, or its beginning. `nearfar memory sleep list` shows it.")]

app = typer.Typer(help="Sum up, merge and correct what is remembered, in batches that can be reverted.", invoke_without_command=True)


@app.callback()
def consolidate(
    context: typer.Context,
    now: Annotated[bool, typer.Option("--now", help="Also on battery, and if it is unknown whether this device is charging.")] = False,
    near: options.Near = None,
    namespace: Prefix = "",
    store: Store = None,
    config: options.Config = None,
    as_json: options.AsJson = False,
) -> None:
    """Sum up, merge and correct what is remembered while this device is charging. A batch can be reverted until it is confirmed.

    An interrupted run is continued by the next one.
    """
    if context.invoked_subcommand is not None:
        return
    choice = StoreChoice(store, config)
    with report_errors(as_json=as_json), open_store(choice) as opened:
        with spinner("going through what is remembered", shown=not as_json):
            slept = asyncio.run(_consolidate(opened, parse_namespace(namespace), choice, near, now=now))
        if as_json:
            print_json([{"namespace": scope, **asdict(each)} for scope, each in slept])
            return
        for scope, each in slept:
            show(None, _slept_lines(scope, each), as_json=False)
            _warn_about(scope, each)
        if not slept:
            show(None, [Note("there is nothing to consolidate")], as_json=False)


@app.command("list")
def list_batches(store: Store = None, config: options.Config = None, as_json: options.AsJson = False) -> None:
    """List the batches, the last first."""
    with report_errors(as_json=as_json), open_store(StoreChoice(store, config)) as opened:
        found = [batch for journal in journals(opened) for batch in journal.batches()]
    batches = sorted(found, key=lambda batch: (batch.began_at, batch.id), reverse=True)
    show([asdict(batch) for batch in batches], _list_lines(batches), as_json=as_json)


@app.command("revert")
def revert_batch(batch: BatchName, store: Store = None, config: options.Config = None, as_json: options.AsJson = False) -> None:
    """Revert a batch: remove its summaries and reinstate the facts that it retired. The same batch is not made again."""
    with report_errors(as_json=as_json), open_store(StoreChoice(store, config)) as opened:
        journal, batch = _find_batch(opened, batch)
        reverted = journal.revert(batch)
    told = f"{count_text(reverted.removed, 'item')} removed, {count_text(reverted.reinstated, 'item')} true again"
    show(asdict(reverted), [told], as_json=as_json)
    for address in () if as_json else reverted.left:
        warn(f"{address_text(address)} was changed since, and stays as it is")


@app.command("confirm")
def confirm_batch(batch: BatchName, store: Store = None, config: options.Config = None, as_json: options.AsJson = False) -> None:
    """Keep a batch for good. The items that it was made from stay, too."""
    with report_errors(as_json=as_json), open_store(StoreChoice(store, config)) as opened:
        journal, batch = _find_batch(opened, batch)
        confirmed = journal.confirm(batch)
    told = f"{batch} is kept: {count_text(confirmed.created, 'item')} made, {count_text(confirmed.retired, 'item')} retired"
    show(asdict(confirmed), [told], as_json=as_json)


async def _consolidate(
    store: "MemoryStore", prefix: "Namespace", choice: StoreChoice, near: str | None, *, now: bool
) -> list[tuple["Namespace", ConsolidationResult]]:
    state = None if now else read_device_state
    policy = options.read_section(choice.config, "memory", MemoryConfig).sleep
    async with _near_agent(choice, near) as agent:
        sleepers = [(scope, Consolidator(store, scope, agent=agent, device_state=state, policy=policy)) for scope in scopes(store, prefix)]
        return [(scope, await sleeper.run()) for scope, sleeper in sleepers]


@asynccontextmanager
async def _near_agent(choice: StoreChoice, near: str | None) -> AsyncIterator[Agent | None]:
    """Open the model of this device; yield None without one, and for a model that knows only one small world."""
    config = options.read_config(choice.config)
    member = near_handle(near if near is not None else None if config is None else config.near)
    if member is None:
        yield None
        return
    try:
        agent = await member.open()
        if agent.card.world is not None:
            warn(f"{agent.card.model} knows nothing but {agent.card.world}: summaries are made of the turns' own sentences")
        yield agent if agent.card.world is None else None
    finally:
        await member.aclose()


def _find_batch(store: "MemoryStore", begins: str) -> tuple[ConsolidationJournal, str]:
    """Return the only batch whose id begins like that, with its journal. Raises `NotFound`, or `InvalidRequest` if there are several."""
    homes = {each.id: journal for journal in journals(store) for each in journal.batches()}
    batch = options.pick_id(begins, list(homes), "batch") if begins else begins
    if batch not in homes:
        raise NotFound(f"there is no batch {printable(batch)!r}", hint="`nearfar memory sleep list` shows them all")
    return homes[batch], batch


def _list_lines(batches: Sequence[ConsolidationBatch]) -> Iterator[Line]:
    if not batches:
        yield Note("nothing was consolidated yet")
        return
    yield table(("batch", "began", "made", "retired", "state"), map(_cells, batches))


def _cells(batch: ConsolidationBatch) -> tuple[str, ...]:
    return (batch.id, batch.began_at[:16].replace("T", " "), f"{batch.created:,}", f"{batch.retired:,}", batch.state.value)


def _slept_lines(scope: "Namespace", slept: ConsolidationResult) -> Iterator[Line]:
    if slept.batch is not None:
        by_model = f", {slept.by_model:,} of them by the model" if slept.by_model else ""
        summaries = "1 summary" if slept.summaries == 1 else f"{slept.summaries:,} summaries"
        yield Text(f"{summaries} made{by_model}, {count_text(slept.retired, 'fact')} retired{_where(scope)}")
        yield Note(f"`nearfar memory sleep revert {slept.batch}` reverts it")
    elif slept.stopped is None:
        yield Note(Text(f"nothing new to consolidate{_where(scope)}"))


def _warn_about(scope: "Namespace", slept: ConsolidationResult) -> None:
    for problem in dict.fromkeys(slept.refused):
        warn(f"a summary of the model was not used: {printable(problem)}")
    if slept.stopped is not None:
        rest = "" if slept.batch else ", or use --now"
        warn(f"stopped{_where(scope)}, since {slept.stopped}; the next run continues there{rest}")


def _where(scope: "Namespace") -> str:
    return f" in {printable(namespace_text(scope))}" if scope else ""
