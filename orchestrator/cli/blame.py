"""`nearfar trace blame`: find the step that failed a run. A module of its own, since it loads LangGraph."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from ...protocols import ConfigError, Side, ToolCall
from ..lab.blame.correction import Reference, StrongerAgent, same
from ..lab.blame.record import RecordedRun
from ..lab.blame.search import Blame, blame
from .options import AgentChoice, RunChoice, full_id
from .printing import Line, Note, show, table
from .selection import chosen_config, open_hybrid
from .trace import open_trace_store

if TYPE_CHECKING:
    from ..hybrid.hybrid import Hybrid


class Question(NamedTuple):
    """The right answer of a failed run, and who corrects its steps: a better run or an agent."""

    expected: str | None
    reference: str | None
    corrector: str | None
    ask_far: bool
    """True to ask far agents, too, how they would have continued after a correction."""


async def find_blame(choice: RunChoice, question: Question, selection: AgentChoice, *, as_json: bool) -> None:
    """Print the step that failed the run, and the outcome of each correction."""
    if (question.reference is None) == (question.corrector is None):
        raise ConfigError(
            "blame needs a better run or an agent that corrects", hint="use --reference RUN, or --corrector AGENT with --expected"
        )
    with open_trace_store(selection.config) as store:
        run, reference = choice.id_in(store), question.reference and full_id(question.reference, store)
        failed = RecordedRun(run, store.entries(run))
        good = RecordedRun(reference, store.entries(reference)) if reference else None
    expected = question.expected or (None if good is None else good.answer)
    if expected is None:
        raise ConfigError("the right answer is not known", hint="give it with --expected")
    async with open_hybrid(selection, chosen_config(selection)) as hybrid:
        found = await _search(failed, good, question, expected, hybrid)
    show({**found.model_dump(mode="json"), "replays": found.replays, "is_certain": found.is_certain}, _lines(found), as_json=as_json)


async def _search(failed: RecordedRun, good: RecordedRun | None, question: Question, expected: str, hybrid: "Hybrid") -> Blame:
    def judge(answer: str, calls: Sequence[ToolCall]) -> bool:
        return same(answer, expected) and (good is None or failed.changes_of(calls) == good.changes_of(good.calls))

    members = (member for member in hybrid.pool if member.name in failed.agents)
    live = {member.name: member for member in members if question.ask_far or member.side is Side.NEAR}
    corrector = question.corrector
    if good is not None:
        return await blame(failed, replace(Reference.of(good), answer=expected), judge, live=live, also=[good])
    if corrector not in {member.name for member in hybrid.pool}:
        known = ", ".join(member.name for member in hybrid.pool)
        raise ConfigError(f"there is no agent {corrector!r}", hint=f"the agents are {known}")
    return await blame(failed, StrongerAgent(hybrid.pool[corrector], failed), judge, live=live)


def _lines(found: Blame) -> Iterator[Line]:
    rows = []
    for trial in found.trials:
        then = trial.outcome if trial.answer is None else f"{trial.outcome}: {trial.answer}"
        rows.append((str(trial.step), f"{trial.agent} {trial.role}", trial.said, trial.corrected, then, trial.because))
    yield table(("step", "agent", "said", "corrected", "then", "because"), rows)
    decisive = found.decisive
    if decisive is None:
        yield f"No single step could be shown to have failed run {found.run}."
    else:
        sure = "" if found.is_certain else "; the outcome of correcting an earlier step is unknown, so that step may have failed it"
        yield f"Step {decisive.step}, {decisive.agent} ({decisive.side}), failed run {found.run}{sure}."
    yield Note(f"{found.replays} replays with corrections of {found.corrector}; no tool was run")
