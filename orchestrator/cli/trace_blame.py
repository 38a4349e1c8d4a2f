"""`nearfar trace blame`."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from ...protocols import ConfigError, Side, ToolCall
from ..hybrid.hybrid import Hybrid
from ..lab.blame.correction import Reference, StrongerAgent, same
from ..lab.blame.record import RecordedRun
from ..lab.blame.search import Blame, blame
from ..util.escaping import printable
from .console import execute, notes, output, print_json
from .options import Selection
from .run_choice import RunChoice, full_id
from .selection import chosen_config, open_hybrid
from .trace_show import opened


class Asked(NamedTuple):
    """Who knows better."""

    expected: str | None
    reference: str | None
    corrector: str | None
    ask_far: bool
    """Also what they would have said behind a correction."""


def blame_run(chosen: RunChoice, asked: Asked, selection: Selection, *, as_json: bool) -> None:
    """Print which step failed the run, and what came of correcting it."""

    async def work() -> None:
        if (asked.reference is None) == (asked.corrector is None):
            raise ConfigError("who knows better is not said", hint="--reference RUN that went well, or --corrector AGENT with --expected")
        with opened(selection.config) as store:
            run, reference = chosen.of(store), asked.reference and full_id(asked.reference, store)
            failed = RecordedRun(run, store.entries(run))
            good = RecordedRun(reference, store.entries(reference)) if reference else None
        expected = asked.expected or (None if good is None else good.answer)
        if expected is None:
            raise ConfigError("nobody knows the right answer", hint="--expected says it")
        async with open_hybrid(selection, chosen_config(selection)) as hybrid:
            found = await _blamed(failed, good, asked, expected, hybrid)
        if as_json:
            print_json({**found.model_dump(mode="json"), "replays": found.replays, "is_certain": found.is_certain})
        else:
            _show(found)

    execute(work(), as_json=as_json)


async def _blamed(failed: RecordedRun, good: RecordedRun | None, asked: Asked, expected: str, hybrid: Hybrid) -> Blame:
    def judge(answer: str, calls: Sequence[ToolCall]) -> bool:
        return same(answer, expected) and (good is None or failed.changes_of(calls) == good.changes_of(good.calls))

    members = (member for member in hybrid.pool if member.name in failed.agents)
    live = {member.name: member for member in members if asked.ask_far or member.side is Side.NEAR}
    corrector = asked.corrector
    if good is not None:
        return await blame(failed, replace(Reference.of(good), answer=expected), judge, live=live, also=[good])
    if corrector not in {member.name for member in hybrid.pool}:
        known = ", ".join(member.name for member in hybrid.pool)
        raise ConfigError(f"there is no agent {corrector!r}", hint=f"the agents are {known}")
    return await blame(failed, StrongerAgent(hybrid.pool[corrector], failed), judge, live=live)


def _show(found: Blame) -> None:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in ("step", "agent", "said", "corrected", "then", "because"):
        table.add_column(column)
    for trial in found.trials:
        then = trial.outcome if trial.answer is None else f"{trial.outcome}: {trial.answer}"
        cells = (str(trial.step), f"{trial.agent} {trial.role}", trial.said, trial.corrected, then, trial.because)
        table.add_row(*(Text(printable(cell)) for cell in cells))
    output.print(table)
    decisive = found.decisive
    if decisive is None:
        output.print(f"No single step could be shown to have failed run {found.run}.")
    else:
        sure = "" if found.is_certain else "; what came of correcting an earlier one is unknown, so it may have been that"
        output.print(f"Step {decisive.step}, {decisive.agent} ({decisive.side}), failed run {found.run}{sure}.")
    notes.print(f"{found.replays} replays with corrections of {found.corrector}; no tool was run", style="dim")
