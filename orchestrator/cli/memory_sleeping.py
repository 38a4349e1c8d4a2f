"""What the commands of `nearfar memory sleep` do."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from ...protocols import Agent, NotFound
from ...protocols.namespaces import namespace_text, parse_namespace
from ..compose.agents import NearConfig, near_handle, read_device_state
from ..memory.consolidation.bench import Slept
from ..memory.consolidation.journal import Batch, Journal
from ..memory.consolidation.scopes import journals, scopes
from ..memory.consolidation.sleeper import Sleeper
from ..util.escaping import printable
from .configuration import read_config
from .console import notes, output, print_json, reported, warn, working
from .memory_store import opened
from .memory_text import address_text, counted
from .options import StoreChoice

if TYPE_CHECKING:
    from ...protocols.namespaces import Namespace
    from ..memory.store import MemoryStore


def consolidate(choice: StoreChoice, namespace: str, near: str | None, *, now: bool, as_json: bool) -> None:
    """Consolidate each scope in or below a namespace; an interrupted run is gone on with by the next one."""
    with reported(as_json=as_json), opened(choice) as store:
        prefix = parse_namespace(namespace)
        with working("going through what is remembered", shown=not as_json):
            slept = asyncio.run(_consolidated(store, prefix, choice, near, now=now))
        if as_json:
            print_json([{"namespace": scope, **asdict(each)} for scope, each in slept])
            return
        for scope, each in slept:
            _tell(scope, each)
        if not slept:
            notes.print("there is nothing to consolidate", style="dim")


def list_batches(choice: StoreChoice, *, as_json: bool) -> None:
    """All batches of all scopes."""
    with reported(as_json=as_json), opened(choice) as store:
        batches = sorted((batch for journal in journals(store) for batch in journal.batches()), key=_age, reverse=True)
    if as_json:
        print_json([asdict(batch) for batch in batches])
        return
    if not batches:
        notes.print("nothing was consolidated yet", style="dim")
        return
    table = Table("batch", "began", "made", "retired", "state", box=SIMPLE_HEAD, pad_edge=False)
    for batch in batches:
        table.add_row(batch.id, batch.began_at[:16].replace("T", " "), f"{batch.created:,}", f"{batch.retired:,}", batch.state.value)
    output.print(table)


def revert_batch(batch: str, choice: StoreChoice, *, as_json: bool) -> None:
    """Take a batch back."""
    with reported(as_json=as_json), opened(choice) as store:
        reverted = _journal_of(store, batch).revert(batch)
    if as_json:
        print_json(asdict(reverted))
        return
    output.print(f"{counted(reverted.removed, 'item')} removed, {counted(reverted.reinstated, 'item')} true again")
    for address in reverted.left:
        warn(f"{address_text(address)} was changed since, and stays as it is")


def confirm_batch(batch: str, choice: StoreChoice, *, as_json: bool) -> None:
    """Keep a batch for good."""
    with reported(as_json=as_json), opened(choice) as store:
        confirmed = _journal_of(store, batch).confirm(batch)
    if as_json:
        print_json(asdict(confirmed))
        return
    output.print(f"{batch} is kept: {counted(confirmed.created, 'item')} made, {counted(confirmed.retired, 'item')} retired")


async def _consolidated(
    store: "MemoryStore", prefix: "Namespace", choice: StoreChoice, near: str | None, *, now: bool
) -> list[tuple["Namespace", Slept]]:
    state = None if now else read_device_state
    config = read_config(choice.config)
    policy = None if config is None or config.memory is None else config.memory.sleep
    async with _near_agent(choice, near) as agent:
        sleepers = [(scope, Sleeper(store, scope, agent=agent, device_state=state, policy=policy)) for scope in scopes(store, prefix)]
        return [(scope, await sleeper.run()) for scope, sleeper in sleepers]


@asynccontextmanager
async def _near_agent(choice: StoreChoice, near: str | None) -> AsyncIterator[Agent | None]:
    """The model of this device, if there is one that knows more than one small world."""
    config = read_config(choice.config)
    member = near_handle(NearConfig(model=near) if near is not None else None if config is None else config.near)
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


def _journal_of(store: "MemoryStore", batch: str) -> Journal:
    for journal in journals(store):
        if any(each.id == batch for each in journal.batches()):
            return journal
    raise NotFound(f"there is no batch {printable(batch)!r}", hint="`nearfar memory sleep list` shows them all")


def _tell(scope: "Namespace", slept: Slept) -> None:
    where = f" in {printable(namespace_text(scope))}" if scope else ""
    if slept.batch is not None:
        by_model = f", {slept.by_model:,} of them by the model" if slept.by_model else ""
        summaries = "1 summary" if slept.summaries == 1 else f"{slept.summaries:,} summaries"
        output.print(Text(f"{summaries} made{by_model}, {counted(slept.retired, 'fact')} retired{where}"))
        notes.print(f"`nearfar memory sleep revert {slept.batch}` takes it back", style="dim")
    elif slept.stopped is None:
        notes.print(Text(f"nothing new to consolidate{where}", style="dim"))
    for problem in dict.fromkeys(slept.refused):
        warn(f"a summary of the model was not used: {printable(problem)}")
    if slept.stopped is not None:
        warn(f"stopped{where}, since {slept.stopped}; the next run goes on from there" + ("" if slept.batch else ", or use --now"))


def _age(batch: Batch) -> tuple[str, str]:
    return batch.began_at, batch.id
