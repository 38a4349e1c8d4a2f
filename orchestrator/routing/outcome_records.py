"""Outcomes on record: the runs of a sweep, from which `auto` learns about configurations, and drafts that a card has weighed or a judge has
seen, of whose probabilities a report, or a far agent's own answer, tells. Reports also name faults, by which later answers are judged.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final, Literal

from pydantic import AfterValidator, Field, JsonValue

from ...protocols import ConfigError, Usage
from ...protocols.items import Tier
from ...protocols.steps import Value
from ..task.decisions import Arm
from ..task.events import Navigated
from ..task.labels import may_go
from ..task.modes import Strategy, TaskProfile
from ..task.results import Attempt
from .answers import Answer
from .costs import lineage
from .meaning import mean_same
from .success import Correction, CorrectionPolicy

if TYPE_CHECKING:
    from .traces import LoggedAttempt

_MOST_SHOWN: Final = 5
_MOST_KEPT: Final = 50
_LISTS: Final = 1024


def _as_utf8(text: str) -> str:
    """Replace half a character, where a model was cut off: UTF-8 cannot encode it."""
    return text.encode(errors="replace").decode()


def _finite(figures: Mapping[str, float | None]) -> Mapping[str, float | None]:
    """Replace NaN and infinities by None: JSON has neither."""
    return {name: None if figure is None or not math.isfinite(figure) else figure for name, figure in figures.items()}


Text = Annotated[str, AfterValidator(_as_utf8)]


class Check(Value):
    """One look of the supervisor at the work."""

    turn: int = Field(ge=0)
    """Executor turns done when it was made."""
    trigger: str | None
    """Trigger of the check: `interval`, `tool_error`, `loop`, `stall`, `long_observation`, `low_confidence`, `half_spent`, `answer`,
    `navigator`, `act`."""
    verdict: Literal["continue", "intervene", "unreadable"] | None
    """None where the supervisor failed."""


class RunRecord(Value):
    """One task under one configuration: a line of `runs.jsonl`."""

    key: str
    """Names the run: `run_key` of what was to be run, so that a sweep knows what it has."""
    world: str
    task: str
    """The task's identifier in its world."""
    prompt: Text
    context_words: int = Field(default=0, ge=0)
    """Length of the context that the task carried apart from its prompt."""
    tools: tuple[str, ...]
    """Names of the tools that the task offered."""
    kind: str
    difficulty: int
    seed: int
    """Seed that the task was drawn with."""
    configuration: str
    """A label such as `pevr/8`."""
    strategy: str
    knobs: Mapping[str, JsonValue] = {}
    """Differences from the policy, apart from the strategy, in the shape of the `[policy]` section."""
    oracle: bool = False
    """The far side was the world's own solver: a ceiling, not a model."""
    near_model: str | None
    """None where the near side did not take part."""
    far_model: str | None
    answer: Text
    error: Text | None = None
    """`Class: message` where the run failed; its score is then 0."""
    success: bool
    score: float = Field(ge=0, le=1)
    measures: Annotated[Mapping[str, float | None], AfterValidator(_finite)] = {}
    """The world's own figures; None: it had no finite one for this run."""
    turns: int = Field(ge=0)
    """Steps of the executor."""
    near_calls: int = Field(ge=0)
    far_calls: int = Field(ge=0)
    near_usage: Usage = Usage()
    far_usage: Usage = Usage()
    dollars: float | None
    """US dollars of the far side; None: unknown. `dollars_source` says at whose price."""
    dollars_source: str
    seconds: float = Field(ge=0)
    """Wall time."""
    joules: float | None
    """Energy of the near side; None: unknown."""
    joules_source: Literal["measured", "estimated", "unavailable"]
    peak_kv_bytes: int | None
    """The largest KV cache that the near side needed; None: unknown."""
    context_tokens: tuple[int, ...] = ()
    """Prompt and output of each executor turn, in order."""
    checks: tuple[Check, ...] = ()
    moves: tuple[Navigated, ...] = ()
    """Moves that a navigator, or chance, has chosen, with their probabilities."""
    interventions: int = Field(default=0, ge=0)
    """Verdicts that were acted upon."""


class Outcome(Value):
    """One task under one configuration: a line of the file that `Hybrid.report` appends to."""

    type: Literal["outcome"] = "outcome"
    task_class: str = ""
    """The class of the task, from coarse to fine: `search/hops`. Empty: only its features are known."""
    profile: TaskProfile
    arm: Arm
    label: str = ""
    """How people call the configuration, such as `pevr/8`."""
    score: float = Field(ge=0, le=1)
    dollars: float | None = Field(ge=0, allow_inf_nan=False)
    """US dollars of both sides; None: unknown."""


def outcomes_of(records: Iterable[RunRecord]) -> Iterator[Outcome]:
    """Yield the outcomes of a sweep's runs.

    Left out are those that tell nothing about a configuration: of an oracle, in shadow mode, of `auto` itself, and those that failed
    before any agent was asked, as where the world could not start over or the process died.
    Raises `ConfigError` for a configuration that this version cannot run.
    """
    for record in records:
        if record.oracle or record.strategy == Strategy.AUTO or _is_shadow(record) or _never_began(record):
            continue
        yield Outcome(
            task_class=f"{record.world}/{record.kind}",
            profile=TaskProfile.of(record.prompt, record.tools, context_words=record.context_words),
            arm=arm_of(record),
            label=record.configuration,
            score=record.score,
            dollars=record.dollars,
        )


def arm_of(record: RunRecord) -> Arm:
    """Return the configuration of a run. Raises `ConfigError` for an unknown strategy."""
    # A sweep runs these two without the other side to fall back to; here the mode is the user's to say.
    implied = ("mode",) if record.strategy in (Strategy.DEVICE, Strategy.CLOUD) else ()
    knobs = {name: value for name, value in record.knobs.items() if name not in implied}
    try:
        return Arm(strategy=Strategy(record.strategy), knobs=knobs)
    except ValueError as error:
        raise ConfigError(f"run {record.key} has strategy {record.strategy!r}, which is unknown", hint="sweep again") from error


def _never_began(record: RunRecord) -> bool:
    """Return True if the run failed before any call. Its tools are unknown then, so it would pass for a task without tools."""
    return record.error is not None and record.near_calls + record.far_calls == 0


def _is_shadow(record: RunRecord) -> bool:
    supervision = record.knobs.get("supervision")
    return isinstance(supervision, dict) and supervision.get("shadow") is True


@dataclass(frozen=True, slots=True)
class ScoredDraft:
    """A card's probability about a draft or about the far agent, with its outcome."""

    card: str
    """File of the card; empty: the default card."""
    subject: str
    """`drafts_of` the draft's agent, or `escalated_to` the far one."""
    task_class: str
    predicted: float
    score: float


def drafts_of(agent: str) -> str:
    """Return the name under which the outcomes of an agent's judged drafts are learned from."""
    return f"the judged draft of {agent}"


def verdicts_of(verifier: str) -> str:
    """Return the name under which the outcomes of a verifier's verdicts are learned from, in place of a card's file."""
    return f"{_VERIFIER}{verifier}"


def correction_for(card: str) -> Correction:
    """Return a correction of the probabilities of a card, or of a verifier's verdicts, before any outcome. Those of judges are far off at
    first: they agree with what they see."""
    return Correction(_OF_JUDGES if card.startswith(_VERIFIER) else None)


_VERIFIER: Final = "the verifier "
_OF_JUDGES: Final = CorrectionPolicy(deviation=2.0)


def escalated_to(agent: str) -> str:
    """Return the name under which the outcomes of a far agent on escalated tasks are learned from."""
    return f"the answer of {agent} to an escalated task"


@dataclass(frozen=True, slots=True)
class EscalatedDraft:
    """A draft that was escalated, with the far agent's verdict."""

    card: str
    agent: str
    """Name of the agent that drafted."""
    expected: float
    """Probability that both are right, by the card."""
    confirmed: bool
    """The far agent gave the same answer."""


def escalated_drafts(attempts: Sequence["Attempt | LoggedAttempt"]) -> Iterator[EscalatedDraft]:
    """Yield the drafts of a task on which a far agent's answer is a verdict."""
    for attempt in attempts:
        ruling, weighed = attempt.arbitration, attempt.weighed
        if ruling is not None and weighed is not None:
            yield EscalatedDraft(weighed.card, attempt.agent, weighed.p_draft * weighed.p_far, ruling.confirmed)


def reported_drafts(attempts: Sequence["Attempt | LoggedAttempt"], agent: str, score: float, task_class: str) -> Iterator[ScoredDraft]:
    """Yield what the reported score of a task's answer tells of its drafts. `agent`: who gave the answer.

    A far answer that is right proves a draft wrong that differs from it; of one that is wrong, nothing follows for the draft.
    """
    for attempt in attempts:
        ruling, weighed = attempt.arbitration, attempt.weighed
        if attempt.outcome == "accepted" and attempt.agent == agent:
            for verifier, verdict in attempt.verified.items():
                yield ScoredDraft(verdicts_of(verifier), verdict.judge, task_class, predicted=verdict.raw, score=score)
        if weighed is None:
            continue
        label = partial(ScoredDraft, weighed.card, task_class=task_class)
        if attempt.outcome == "accepted" and attempt.agent == agent:
            yield label(subject=drafts_of(agent), predicted=weighed.p_draft, score=score)
            if ruling is not None and ruling.confirmed:
                yield label(subject=escalated_to(ruling.by), predicted=weighed.p_far, score=score)
        elif attempt.outcome == "rejected":
            yield label(subject=escalated_to(agent), predicted=weighed.p_far, score=score)
            if ruling is not None and (ruling.confirmed or score == 1.0):
                yield label(subject=drafts_of(attempt.agent), predicted=weighed.p_draft, score=score if ruling.confirmed else 0.0)


@dataclass(frozen=True, slots=True)
class ReportedFault:
    """The reason for which an app held an answer for wrong."""

    task_class: str
    because: str
    tier: Tier = Tier.SHARED
    """How far the reason may go: as far as the run that gave the answer."""
    user: str = ""
    """The user whose answer it was."""

    def may_be_told(self, user: str, reach: Tier) -> bool:
        """Return whether a run of this user whose content may go as far as `reach` may be told the reason: a private one stays with its
        user, in runs that are as private."""
        return self.tier is Tier.SHARED or (self.user == user and may_go(self.tier, reach))


@dataclass(slots=True)
class Faults:
    """The faults that reports have named, by class of task; private ones by user, too, so that no user's displace those of others.

    Not for several threads at a time.
    """

    _kept: dict[tuple[str, str | None], list[tuple[int, ReportedFault]]] = field(default_factory=dict)
    """By class and user, None for the faults that all may be told: each with the number of reports that named it. The most frequent come
    first, and of equally frequent ones the latest."""

    def add(self, fault: ReportedFault) -> None:
        """Count a fault in its class and those above it. One that was named in like words before is counted there."""
        whose = None if fault.tier is Tier.SHARED else fault.user
        for name in lineage(fault.task_class) or ("",):
            known = self._kept.pop((name, whose), [])
            place = next((place for place, (_, other) in enumerate(known) if _is_same(fault, other)), None)
            count, first = (0, fault) if place is None else known.pop(place)
            self._kept[name, whose] = sorted([(count + 1, first), *known], key=_frequency)[:_MOST_KEPT]
        while len(self._kept) > _LISTS:
            del self._kept[next(iter(self._kept))]

    def of(self, task_class: str, *, user: str, reach: Tier) -> list[str]:
        """Return the faults named most often in a class, or in the next wider one of which any is known, that such a run may be told."""
        for name in reversed(lineage(task_class) or ("",)):
            known = sorted((*self._kept.get((name, None), ()), *self._kept.get((name, user), ())), key=_frequency)
            if told := [fault.because for _, fault in known if fault.may_be_told(user, reach)]:
                return told[:_MOST_SHOWN]
        return []


def _frequency(counted: tuple[int, ReportedFault]) -> int:
    return -counted[0]


def _is_same(fault: ReportedFault, other: ReportedFault) -> bool:
    return fault.tier is other.tier and mean_same(Answer.of_whole(fault.because), Answer.of_whole(other.because), embedder=lambda: None)
