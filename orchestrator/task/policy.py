"""The policy by which tasks are served, its presets, and its sections about strategies, privacy and trust."""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self, TypeVar, get_args

from pydantic import BeforeValidator, Field, PositiveInt, model_validator

from ...protocols import Effort, Sensitivity, Side
from ...protocols.steps import Value
from .modes import Mode, Strategy
from .routing_policy import (
    BreakerConfig,
    EvidenceConfig,
    FallbackConfig,
    HedgeConfig,
    LimitsConfig,
    ObjectiveConfig,
    RouterConfig,
    StickinessConfig,
)
from .rules import Rule

FindingType = Literal[
    "email", "card", "iban", "ssn", "national_id", "phone", "ip", "key", "birth_date", "address", "url", "person", "place", "group"
]  # fmt: skip
EffortShare = Annotated[float, Field(ge=0.1, le=2)]
PartStrategy = Literal[Strategy.DEVICE, Strategy.CLOUD, Strategy.ROUTE, Strategy.CASCADE, Strategy.PEVR, Strategy.EVA]
_Section = TypeVar("_Section", bound=Value)


class AutoConfig(Value):
    """How `auto` chooses a strategy: the `[policy.auto]` section of nearfar.toml.

    A configuration is worth its score minus its dollars, and the best one serves the task. Without outcomes, each kind of task has a
    documented default.
    """

    outcomes: Path | None = None
    """Path of a sweep's `runs.jsonl` to learn from; None: no measured outcomes are used."""
    reports: Path | None = None
    """Path of a file to which `Hybrid.report` appends outcomes that the app observes, and from which `auto` learns; None: they are lost
    with the process.
    """
    dollars_per_point: float = Field(default=0.01, gt=0)
    """US dollars per task worth spending for one more point of score, a hundredth of a perfect answer."""
    explore_share: float = Field(default=0.0, ge=0, le=1)
    """Largest share of tasks, 0 to 1, that may be served by another configuration than the best known one, to learn about it: each of them
    once in each class of tasks, and then by chance. 0: the same outcomes always give the same choice.
    """
    minimum_familiarity: float = Field(default=0.5, ge=0, le=1)
    """Share of a prompt's words, 0 to 1, that a class of tasks must have seen before for the prompt to count as one of them."""

    @property
    def dollars_per_score(self) -> float:
        """Return the dollars worth spending for a perfect answer in place of none."""
        return 100 * self.dollars_per_point


class CompressionUse(StrEnum):
    """When a conversation that exceeds an agent's context window is compressed for it."""

    NEVER = "never"
    LAST_RESORT = "last_resort"
    """If no other agent could take over: one with a larger window reads all of it."""
    ALWAYS = "always"
    """Before another agent takes over."""


class CompressionConfig(Value):
    """Compression of long conversations: the `[policy.compression]` section of nearfar.toml."""

    use: CompressionUse = CompressionUse.LAST_RESORT
    """When a conversation is compressed."""
    reserve_tokens: int = Field(default=512, gt=0)
    """Tokens of the context window kept free for the agent's output; at most a quarter of the window, and at most the task's output
    limit."""
    summary_tokens: int = Field(default=0, ge=0)
    """Most tokens of a near agent's summary of the messages that are left out; 0: there is no summary."""


class OnDoubt(StrEnum):
    """Treatment of a doubtful call."""

    ALLOW = "allow"
    """The call runs."""
    ASK = "ask"
    """The call needs approval; if nothing can approve it, it does not run."""
    REFUSE = "refuse"
    """The call does not run."""


class GuardConfig(Value):
    """Tool calls after a run has read untrusted content: the `[policy.guard]` section."""

    tools: OnDoubt = OnDoubt.ASK
    """Treatment of a call to a tool that the task does not list and the model had not chosen before it read untrusted content; by default
    it needs approval.
    """
    arguments: OnDoubt = OnDoubt.ASK
    """Treatment of a call with an argument from neither the user's words nor trusted data, or that would show private data to more people
    than may see them; by default it needs approval.
    """


class MinionsConfig(Value):
    """How `minions` reads a long context: the `[policy.minions]` section of nearfar.toml. The defaults are those of MinionS
    (arXiv 2502.15964), unless a limit of this device's work asks for less.
    """

    maximum_rounds: int = Field(default=3, ge=1, le=20)
    """Most rounds of jobs, 1 to 20; after the last one the far side has to answer."""
    maximum_jobs: int = Field(default=8, gt=0)
    """Most jobs per round; each is done on every chunk."""
    maximum_readings: int = Field(default=2048, gt=0)
    """Most readings (jobs times chunks) per round, each a call of the near agent; with many chunks fewer jobs are allowed."""
    chunk_characters: int = Field(default=3000, ge=100)
    """Most characters of a chunk; it ends with a paragraph or a sentence if possible."""
    overlap_characters: int = Field(default=20, ge=0)
    """Characters that a chunk repeats of the one before, at most half of a chunk."""
    parallel: int = Field(default=8, gt=0)
    """Most readings at a time, limited by the near agent's own parallelism."""
    finding_tokens: int = Field(default=300, gt=0)
    """Most tokens of one reading, so that a small model that cannot stop does not block the others."""
    findings_characters: int = Field(default=24_000, gt=0)
    """Most characters of findings that the far side is shown per round; it is told how much was left out."""

    @model_validator(mode="after")
    def _chunks_advance(self) -> Self:
        if self.overlap_characters > self.chunk_characters // 2:
            raise ValueError("overlap_characters must be at most half of chunk_characters")
        return self


class OnFinding(StrEnum):
    """Treatment of outbound texts in which a detector finds private data that no label covers."""

    STAY = "stay"
    """The text does not leave; a near agent continues the task."""
    PLACEHOLDER = "placeholder"
    """The text leaves with placeholders for the findings."""
    ALLOW = "allow"
    """The text leaves as it is, and the outbound log lists the findings."""


class PrivacyConfig(Value):
    """Protection of private data in tasks that are not private themselves: the `[policy.privacy]` section."""

    findings: OnFinding = OnFinding.STAY
    """Treatment of a public task in which something private is found."""
    detect: tuple[FindingType, ...] = (
        "email", "card", "iban", "ssn", "national_id", "phone", "ip", "key", "birth_date", "address", "person"
    )  # fmt: skip
    """Types of findings that count; a text that could not be scanned always does."""
    spacy_model: str | None = None
    """Package or folder of the spaCy model with which Presidio finds names (the extra `presidio`); None: names are not looked for."""
    detectors: tuple[str, ...] = ()
    """Names of detector plugins to look with, too. All their findings count. Where one fails, the text counts as a finding."""
    patience: float = Field(default=5.0, gt=0, allow_inf_nan=False)
    """Seconds that scanning the texts of one request may take; a text that takes longer counts as a finding."""
    placeholders: bool = False
    """Let a far agent continue with placeholders for private tool results; false: a near agent continues."""


class SubtasksConfig(Value):
    """How `subtasks` divides a task: the `[policy.subtasks]` section of nearfar.toml."""

    maximum_subtasks: int = Field(default=8, gt=0)
    """Most subtasks of a task; a plan with more is sent back."""
    parallel: int = Field(default=4, gt=0)
    """Most subtasks that run at a time."""
    strategy: PartStrategy = Strategy.CASCADE
    """Strategy for each subtask."""
    aggregate: Literal["when_needed", "always"] = "when_needed"
    """Source of the answer: `when_needed`, the last subtask if all others lead to it, else a call that is shown all results; `always`, that
    call in any case.
    """
    exclusive_tools: bool = True
    """Let the tools of only one subtask run at a time, so that they cannot interfere; false if they only read."""


class SpeculateConfig(Value):
    """How far the near agent runs ahead in `speculate`: the `[policy.speculate]` section of nearfar.toml."""

    thrift: float = Field(default=0.5, ge=0, le=1)
    """Weight of dollars against time, 0 to 1: at 0 near runs as far ahead as it may, at 1 not at all."""
    maximum_ahead: int = Field(default=8, ge=1, le=32)
    """Most steps that near is ahead of far, 1 to 32: as many far calls may be under way beyond the one that counts."""
    learn: bool = True
    """Learn from each proposal how often far confirms one that near is as sure of, and go ahead accordingly. `[policy.router] log` keeps
    that for later processes."""
    tools: tuple[str, ...] = ()
    """External read-only tools, as those of MCP servers, that may run ahead of far. Those of the app may without being named."""


class Trigger(StrEnum):
    """An event in the executor's work that causes a check (after SupervisorAgent, arXiv 2510.26585)."""

    TOOL_ERROR = "tool_error"
    """A tool returned an error."""
    LOOP = "loop"
    """An equal call was made `loop_calls` times, with arguments in any order."""
    STALL = "stall"
    """The last `stall_turns` turns brought nothing new: each word of their results was in the prompt or in an earlier result. An error
    brings nothing. After a reset the count starts again, since the executor has forgotten what it was told.
    """
    LONG_OBSERVATION = "long_observation"
    """A result is longer than `observation_characters`."""
    LOW_CONFIDENCE = "low_confidence"
    """The executor's confidence in its last step is below `minimum_confidence`."""
    HALF_SPENT = "half_spent"
    """Half of the turns, or of the task's timeout, is used up. Occurs once per task."""
    ANSWER = "answer"
    """The executor answered: the answer stands unless the supervisor intervenes. Without this trigger it ends the task unchecked."""


Cause = Trigger | Literal["interval", "act"]
"""Cause of a check; `act`: a call that may change something, in a step that the evidence speaks against."""


class Verdict(StrEnum):
    """Verdict of a check."""

    CONTINUE = "continue"
    INTERVENE = "intervene"
    UNREADABLE = "unreadable"
    """Neither word, or an INTERVENE without the text that has to follow it; the work continues."""


def _none_in_words(value: object) -> object:
    """Return None for "none", since TOML has no None."""
    return None if value == "none" else value


class SupervisionConfig(Value):
    """Supervision of one agent by the other in `pevr` and `eva`: the `[policy.supervision]` section of nearfar.toml.

    A turn is checked at most once, whether by interval or trigger. A trigger counts only events after the last check.
    """

    executor: Side = Side.NEAR
    """Side that works; the other one supervises it. `far` reverses the usual roles."""
    plan_below: float | None = Field(default=None, ge=0, le=1)
    """In `pevr`, confidence of the executor's first step, 0 to 1, below which the step is dropped and the task is planned first; an unknown
    confidence is low. None: every task is planned before the first step.
    """
    draft_plan_above: float | None = Field(default=None, ge=0, le=1)
    """In `pevr`, confidence, 0 to 1, from which a near executor's own draft of the plan is used, if it names all that the task names and
    does not repeat itself. Else the supervisor plans. An unknown confidence is 0. None: no draft is made.
    """
    interval: Annotated[PositiveInt | None, BeforeValidator(_none_in_words)] = 8
    """Turns between two scheduled checks (Tv in arXiv 2605.30102); None, in TOML "none": only triggers cause checks."""
    triggers: tuple[Trigger, ...] = ()
    """Events that cause a check, in addition to the schedule."""
    loop_calls: int = Field(default=2, gt=1)
    """Number of calls, equal in name and arguments, that make a loop."""
    stall_turns: int = Field(default=3, gt=0)
    """Number of consecutive turns without news that make a stall."""
    observation_characters: int = Field(default=4000, gt=0)
    """Characters of one tool result above which it is a long observation."""
    minimum_confidence: float = Field(default=0.5, ge=0, le=1)
    """Confidence of a step, 0 to 1, below which it is low."""
    maximum_guidance: int = Field(default=4000, gt=0)
    """Most characters of a plan, or of a summary with advice; a longer one is not used."""
    prior: bool = False
    """Have the supervisor write what must be true of a right outcome before it sees any work, once a kind of task, and check by that."""
    shadow: bool = False
    """Record verdicts and change nothing, to measure how often the supervisor is wrong."""


class Preset(StrEnum):
    """Defaults for several keys of a policy at once."""

    PRIVATE = "private"
    """Only tasks that are declared public may leave the device, begin on it, and stay if anything in them looks private."""
    BALANCED = "balanced"
    """Each key's own default."""
    CHEAPEST = "cheapest"
    """The near agent drafts, the far one is asked only if the evidence speaks against the draft, and dollars are tightly limited."""


PRESETS: Final[Mapping[Preset, Mapping[str, Any]]] = {
    Preset.PRIVATE: {
        "mode": Mode.PREFER_ON_DEVICE,
        "sensitivity": Sensitivity.PRIVATE,
        "privacy": {"findings": OnFinding.STAY, "detect": get_args(FindingType), "placeholders": False},
        "guard": {"tools": OnDoubt.ASK, "arguments": OnDoubt.ASK},
    },
    Preset.BALANCED: {},
    Preset.CHEAPEST: {
        "strategy": Strategy.CASCADE,
        "mode": Mode.PREFER_ON_DEVICE,
        "limits": {"task": {"dollars": 0.02}, "day": {"dollars": 1.0}, "unknown_price": "refuse"},
        "compression": {"use": CompressionUse.ALWAYS},
    },
}
"""The values of each preset, for keys that are not given."""


def _with_defaults(section: _Section, defaults: Mapping[str, Any]) -> _Section:
    """Return the section with these values for keys that were not given."""
    added = {}
    for name, value in defaults.items():
        if isinstance(value, Mapping):
            added[name] = _with_defaults(getattr(section, name), value)
        elif name not in section.model_fields_set:
            added[name] = value
    return section.model_copy(update=added)


class Policy(Value):
    """How tasks are served by default: the `[policy]` section of nearfar.toml."""

    preset: Preset = Preset.BALANCED
    """Defaults for keys that are not given; a key that is given wins."""
    strategy: Strategy = Strategy.CASCADE
    """Way in which both sides work on a task. Where the file leaves it out, a task with a tool that is not declared `read` gets what `auto`
    picks."""
    mode: Mode = Mode.AUTO
    """Sides that may serve a task."""
    sensitivity: Sensitivity = Sensitivity.PRIVATE
    """Sensitivity of tasks that state none."""
    minimum_confidence: float = Field(default=0.7, ge=0, le=1)
    """Confidence, 0 to 1, below which a cascade rejects a draft, and a near agent changes nothing if the far side may be asked."""
    attempt_timeout: float = Field(default=60, gt=0)
    """Seconds for an agent before the next candidate takes over; the last candidate has no such limit. Under supervision it limits each
    step, including the supervisor's.
    """
    maximum_turns: int = Field(default=16, gt=0)
    """Most steps of one agent on one task."""
    unchanging_tools: tuple[str, ...] = ()
    """Names of read-only tools, such as a search, that read nothing which changes while a run lasts. An equal call is not made again: the
    agent is given the first one's result, with a note.
    """
    maximum_hand_offs: int = Field(default=8, ge=0, le=100)
    """Most hand-offs between roles on one task, 0 to 100; the role that the last one leads to has to answer."""
    temperature: float | None = Field(default=None, ge=0, le=2)
    """Sampling temperature of each step, 0 to 2; 0 always takes the likeliest token. None: 0 for near agents, the provider's default for
    far ones."""
    effort: Effort | EffortShare | None = None
    """How long models think in each step: a level, or a share of what is usual for the agent, the class of the task and the length of the
    prompt, 0.1 to 2.0. None: the agent's configuration decides, else the model's own default."""
    maximum_output_tokens: int | None = Field(default=None, gt=0)
    """Most tokens of each step's output; None: the agent's own limit."""
    rules: tuple[Rule, ...] = ()
    """Rules for certain tasks, devices and hours, in order of priority."""
    objective: ObjectiveConfig = ObjectiveConfig()
    """Weights of quality, cost, time and energy for the router."""
    limits: LimitsConfig = LimitsConfig()
    """Limits of spending per call, task, session, user and day."""
    fallback: FallbackConfig = FallbackConfig()
    """Agents that take over from one that failed, and when."""
    breakers: BreakerConfig = BreakerConfig()
    """Circuit breakers for agents that fail."""
    hedge: HedgeConfig = HedgeConfig()
    """Hedging: a second agent for an unusually slow first step."""
    stickiness: StickinessConfig = StickinessConfig()
    """How long a session stays with one agent."""
    privacy: PrivacyConfig = PrivacyConfig()
    """Treatment of private data on the way to far agents."""
    guard: GuardConfig = GuardConfig()
    """Approval of tool calls after a run has read untrusted content."""
    evidence: EvidenceConfig = EvidenceConfig()
    """Checks of a draft before a cascade accepts it."""
    router: RouterConfig = RouterConfig()
    """The router's predictions, learning and budget."""
    supervision: SupervisionConfig = SupervisionConfig()
    """Supervision in the strategies `pevr` and `eva`."""
    minions: MinionsConfig = MinionsConfig()
    """How the strategy `minions` reads a long context."""
    subtasks: SubtasksConfig = SubtasksConfig()
    """How the strategy `subtasks` divides a task."""
    speculate: SpeculateConfig = SpeculateConfig()
    """How far near runs ahead in the strategy `speculate`."""
    compression: CompressionConfig = CompressionConfig()
    """Compression of conversations that are too long for an agent."""
    auto: AutoConfig = AutoConfig()
    """How the strategy `auto` chooses another one."""

    @model_validator(mode="after")
    def _take_defaults_of_preset(self) -> Self:
        complete = _with_defaults(self, PRESETS[self.preset])
        # In place: pydantic ignores another instance, and a validator before the fields would make it read TOML's lists as Python's.
        vars(self).update(vars(complete))
        self.model_fields_set.update(complete.model_fields_set)
        return self
