"""Verifiers: how likely an answer is right, why, and at what cost. Each is a look of the evidence cascade.

The fixed checks reject a draft that scores below one half; a learned escalation weighs the `signal` of a verifier, and its price.

Of several samples, the answer that most give is elected, with early stopping (adaptive consistency, arXiv 2305.11860, by confidence, arXiv
2508.15260): sampling stops once the remaining votes would hardly change that: the leading answer is three votes ahead, or two of which the
samples are sure, or can no longer be overtaken. Votes weighted by confidence elected no better.
"""

import math
import re
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import Any, Final, Protocol

import anyio.to_thread

from ...protocols import AgentCard, ConfigError, InvalidOutput, Message, Side, StepReply, ToolChoice, ToolSpec
from ...protocols.validation import parse_output
from ..agents import AgentHandle
from ..routing.answers import Answer
from ..routing.looks import Cost, Signal, is_grounded, log_odds, text_opinion
from ..routing.meaning import mean_same
from ..task import Task, last_words, task_text
from ..task.labels import Label
from ..task.results import Attempt
from ..task.routing_policy import FALLBACK_ERRORS
from .calls import CallLog, TaskRuntime
from .prompts import judge_request, prior_request, verify_progress_request, with_answer_line
from .state import TaskState, as_json, step_request, value_of
from .turn import AgentTurn

UNDECIDED: Final = 0.5
JUDGE_ADAPTER: Final = "judge"
"""Name of the LoRA adapter that a judge wears for its verdicts, if it has one of this name: one that was trained to judge finished work."""
_SAMPLE_TEMPERATURE: Final = {Side.NEAR: 0.7, Side.FAR: 1.0}
"""Least temperature of an agent that is asked the same again: without chance it would say the same again. Far: the providers' default."""
_SAMPLES: Final = 3
"""Verdicts of a judge that tells no log-probabilities."""
_LIKELIEST: Final = 20
_VERDICT_TOKENS: Final = 512
_MOST_PRIORS: Final = 256
_POINT: Final = re.compile(r"^\s*(?:[-*\u2022]|\d+\s*[.):])\s*(\S.*)$", re.MULTILINE)
_UNMET: Final = re.compile(r"^.*\bnot met\b.*$", re.IGNORECASE | re.MULTILINE)
_SETTLING_LEAD: Final = 3
"""Votes by which an answer has to lead. Chosen, as the next two, on recorded samples of the shipped near model."""
_SURE_LEAD: Final = 2
"""Votes that are enough if ..."""
_SURE_ODDS: Final = 5.0
"""... the log odds of their confidence lead by so much, in sum as in naive Bayes."""


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of a verifier."""

    score: float
    """Probability that the answer is right, 0 to 1; one half: it cannot be told."""
    because: str
    cost: Cost = Cost()
    signal: Signal = field(default_factory=Signal)
    """The measures that an escalation weighs; empty: nothing was found."""
    raw: float | None = None
    """The judge's own probability, before outcomes have corrected it; None: no judge was asked."""

    @property
    def is_accepted(self) -> bool:
        """Return whether the fixed checks let the answer stand."""
        return self.score >= UNDECIDED


@dataclass(frozen=True, slots=True)
class CandidateEvidence:
    """The facts about a candidate that exist before a verifier is asked."""

    messages: Sequence[Message]
    """The conversation that led to it, results of tools included."""
    has_tools: bool
    """Its agent could have looked up what it says."""
    tools: tuple[ToolSpec, ...] = ()
    """Tools whose calls may stand in the conversation."""
    key: str = "verify"
    """Names the check within its task."""


class Verifier(Protocol):
    """Tells how likely an answer is right."""

    async def verify(self, task: Task, candidates: Sequence[str], evidence: CandidateEvidence) -> Verification:
        """Judge the first of `candidates`; the others are further answers to the task.

        Raises one of `FALLBACK_ERRORS` if an agent that has to be asked fails.
        """
        ...


def second_sample_temperature(temperature: float | None, side: Side, *, is_again: bool) -> float | None:
    """Return the temperature at which an agent is asked; raised if it is asked the same again."""
    return max(temperature or 0.0, _SAMPLE_TEMPERATURE[side]) if is_again else temperature


class SchemaVerifier:
    """Checks that an answer keeps to the schema of the task's output."""

    async def verify(self, task: Task, candidates: Sequence[str], evidence: CandidateEvidence) -> Verification:
        """Judge the first of `candidates`; without a schema nothing can be told."""
        if task.output_schema is None:
            return Verification(UNDECIDED, "the task has no schema")
        try:
            parse_output(candidates[0], task.output_schema)
        except InvalidOutput as error:
            return Verification(0.0, error.message, signal=Signal({"is valid": 0.0}))
        return Verification(1.0, "it fits the schema", signal=Signal({"is valid": 1.0}))


class GroundedVerifier:
    """Checks that results of tools support an answer."""

    async def verify(self, task: Task, candidates: Sequence[str], evidence: CandidateEvidence) -> Verification:
        """Judge the first of `candidates`; without tools, or with a schema, nothing can be told."""
        if not evidence.has_tools or task.output_schema is not None:
            return Verification(UNDECIDED, "there is nothing to look it up in")
        supported = is_grounded(candidates[0], evidence.messages)
        because = "results of tools support it" if supported else "the answer occurs in no tool result"
        return Verification(float(supported), because, signal=Signal({"is grounded": float(supported)}))


@dataclass(frozen=True, slots=True)
class AskedAgent:
    """An agent that verifiers ask, with the log that takes its calls."""

    handle: AgentHandle
    log: CallLog
    role: str
    label: Label | None = None
    """The label of the text that it is told; None: it may be anything that the run has seen."""

    async def card(self) -> AgentCard:
        """Return its card. Raises what opening the agent raises."""
        return (await self.handle.open()).card

    async def require_reader(self) -> None:
        """Raise `ConfigError` if the agent reads no points to judge by: models of a single world know only trained words."""
        if (await self.card()).world is not None:
            raise ConfigError(f"{self.handle.name} reads no points to judge by", hint="models of a single world give plain verdicts alone")

    async def ask(self, task: Task, messages: Sequence[Message], key: str, **fields: object) -> StepReply:
        """Ask one step; `fields` are those of `StepRequest`. Raises what the step raises."""
        return await self.log.ask(self.handle, step_request(task, messages, key, **fields), role=self.role, label=self.label)

    def cost_since(self, first: int) -> Cost:
        """Return the cost of the calls from the `first` one of the log."""
        made = self.log.made[first:]
        return Cost(dollars=sum(float(call.dollars or 0) for call in made), seconds=sum(call.seconds for call in made))


class AgreementVerifier:
    """Compares an answer with that of another agent, or with a second one of the same agent (`is_again`)."""

    def __init__(self, asked: AskedAgent, *, is_again: bool) -> None:
        self._asked = asked
        self._is_again = is_again
        self.said = ""
        """The other answer, once it was asked for."""

    async def verify(self, task: Task, candidates: Sequence[str], evidence: CandidateEvidence) -> Verification:
        """Ask for the other answer, and compare the first of `candidates` with it."""
        first = len(self._asked.log.made)
        self.said = (await self._opinion(task, evidence)).text
        asked_for, schema = last_words(task.messages), task.output_schema
        draft = Answer.of_text(candidates[0], prompt=asked_for, schema=schema)
        # Open-ended texts are embedded, which takes some time, and the first time loads a model.
        found = await anyio.to_thread.run_sync(partial(text_opinion, draft, self.said, asked_for, schema=schema))
        assert found.answer is not None, "a second opinion has an answer, be it empty"
        agrees, name = found.measures["agrees"], self._asked.handle.name
        because = f"{name} agrees" if agrees else f"{name} answers otherwise: {found.answer.found or self.said[:80]}"
        return Verification(agrees, because, self._asked.cost_since(first), found)

    async def _opinion(self, task: Task, evidence: CandidateEvidence) -> StepReply:
        """Ask for an answer to the same conversation. Tools are shown, since their calls stand in it, and none may be called. A general
        model is asked to mark its answer; models of a single world, as the shipped ones, know no such words."""
        card = await self._asked.card()
        is_marked = card.world is None and task.output_schema is None
        return await self._asked.ask(
            task,
            with_answer_line(evidence.messages) if is_marked else evidence.messages,
            f"{evidence.key}/opinion/{self._asked.handle.name}",
            tools=evidence.tools if card.capabilities.tools else (),
            tool_choice=ToolChoice.NONE,
            output_schema=task.output_schema,
            temperature=second_sample_temperature(task.policy.temperature, self._asked.handle.side, is_again=self._is_again),
        )


Points = Callable[[Task], Awaitable[Sequence[str]]]
"""Returns what has to be true of a right answer to a task; nothing where none is known."""


class JudgeVerifier:
    """Asks an agent for its verdict on an answer and the whole work on it (generative outcome reward, arXiv 2510.00492).

    The score is P(yes) / (P(yes) + P(no)) at the word of the verdict, or the mean of Beta(1, 1) after three verdicts of an agent that tells
    no log-probabilities.

    Args:
        asked: the judge.
        calibrate: corrects its probability by the outcomes that were reported.
        points: what has to be true of a right answer, shown between task and work; None: the judge is asked plainly.
    """

    def __init__(self, asked: AskedAgent, calibrate: Callable[[float], float], points: Points | None = None) -> None:
        self._asked = asked
        self._calibrate = calibrate
        self._points = points

    async def verify(self, task: Task, candidates: Sequence[str], evidence: CandidateEvidence) -> Verification:
        """Ask for a verdict on the first of `candidates`. Raises `ConfigError` for points that the judge cannot read."""
        first, card = len(self._asked.log.made), await self._asked.card()
        if self._points is not None:
            await self._asked.require_reader()
        points = () if self._points is None else await self._points(task)
        if self._points is not None and not points:
            return Verification(UNDECIDED, "no point is known by which to judge it")
        work = [*evidence.messages[len(task.messages) :], Message.assistant(candidates[0])]
        words = SHIPPED_WORDS if card.world is not None else GENERAL_WORDS
        messages = words.request(task_text(task), points, work)
        raw, said = await self._share(task, messages, f"{evidence.key}/judge/{self._asked.role}", words)
        score = self._calibrate(raw)
        because = f"{self._asked.handle.name} takes it for right with {score:.0%}{_unmet(said)}"
        return Verification(score, because, self._asked.cost_since(first), Signal({"log odds": log_odds(raw)}), raw)

    async def _share(self, task: Task, messages: Sequence[Message], key: str, words: "VerdictWords") -> tuple[float, str]:
        """Return the share of yes, and a reply. Raises `InvalidOutput` if no verdict can be read."""
        card = await self._asked.card()
        fields: dict[str, Any] = {"adapter": JUDGE_ADAPTER} if JUDGE_ADAPTER in card.adapters else {}
        if card.capabilities.logprobs:
            reply = await self._asked.ask(task, messages, key, top_logprobs=_LIKELIEST, max_output_tokens=words.longest, **fields)
            if (share := words.likely_share(reply)) is not None:
                return share, reply.text
        verdicts, said = [], ""
        fields |= {"temperature": second_sample_temperature(task.policy.temperature, self._asked.handle.side, is_again=True)}
        for number in range(_SAMPLES):
            reply = await self._asked.ask(task, messages, f"{key}/{number}", max_output_tokens=_VERDICT_TOKENS, **fields)
            if (verdict := words.verdict(reply.text)) is not None:
                verdicts.append(verdict)
                said = reply.text
        if not verdicts:
            raise InvalidOutput(f"{card.name} gave no verdict that can be read", hint="name another judge")
        return (sum(verdicts) + 1) / (len(verdicts) + 2), said


@dataclass(frozen=True, slots=True)
class VerdictWords:
    """The words of a verdict, and the request that asks for them."""

    yes: str
    no: str
    request: Callable[[str, Sequence[str], Sequence[Message]], tuple[Message, ...]]
    longest: int
    """Tokens of a reply whose log-probabilities are read."""
    is_first: bool
    """The verdict opens the reply; else it closes it, behind `Right:` or in a line of its own: the words before it may hold a no."""

    def verdict(self, text: str) -> bool | None:
        """Return the verdict of a reply; None if there is none."""
        said = self._said(text)
        return None if said is None else text[slice(*said)].casefold() == self.yes.casefold()

    def _said(self, text: str) -> tuple[int, int] | None:
        """Return where the word of the verdict stands."""
        word = rf"(?P<word>{self.yes}|{self.no})\b"
        pattern = rf"\b{word}" if self.is_first else rf"(?:\bright\W{{1,8}}|^\W*(?=\w+\W*$)){word}(?!\s*(?:/|or\b))"
        found = list(re.finditer(pattern, text, re.IGNORECASE | re.MULTILINE))
        return found[0 if self.is_first else -1].span("word") if found else None

    def likely_share(self, reply: StepReply) -> float | None:
        """Return P(yes) / (P(yes) + P(no)) at the word of the verdict; None if the reply has none, or no log-probabilities.

        A word that is not among the likeliest tokens gets what these leave.
        """
        tokens = reply.finished.logprobs
        said = self._said("".join(token.token for token in tokens))
        if said is None:
            return None
        ends = accumulate(len(token.token) for token in tokens)
        token = next(token for token, end in zip(tokens, ends, strict=True) if end >= said[1])
        if _bare(token.token) not in (self.yes.casefold(), self.no.casefold()):
            return None
        likely = [(_bare(each.token), math.exp(each.logprob)) for each in token.top]
        rest = max(1 - sum(share for _, share in likely), 0.0)
        yes, no = (sum(share for word, share in likely if word == wanted.casefold()) or rest for wanted in (self.yes, self.no))
        return yes / (yes + no) if yes + no else None


def _bare(token: str) -> str:
    return token.strip(" \n.*_").casefold()


def _unmet(said: str) -> str:
    found = _UNMET.search(said)
    return "" if found is None else f": {found[0].strip()[:200]}"


def _shipped_request(task: str, points: Sequence[str], work: Sequence[Message]) -> tuple[Message, ...]:
    assert not points, "the shipped models read none"
    return verify_progress_request(task, "", work)


SHIPPED_WORDS: Final = VerdictWords("CONTINUE", "INTERVENE", _shipped_request, 1, is_first=True)
"""The words that the shipped models are trained on."""
GENERAL_WORDS: Final = VerdictWords("Yes", "No", judge_request, _VERDICT_TOKENS, is_first=False)


class PriorPoints:
    """Returns what must be true of a right answer, written from task and tools alone, before any work was seen (arXiv 2507.11662).

    The list is kept by the kind of the task, without what the task names, so that it costs one call a kind. Nothing is kept of a task
    that asks for no-store, as one that has recalled memory does, nor where no words tell its kind.

    Args:
        kept: lists by kind, shared by tasks.
        writers: the agents that may write it, in their order: the first that may be told the task and answers.
        tools: that the task could use.
    """

    def __init__(self, kept: MutableMapping[str, str], writers: Sequence[AskedAgent], tools: Sequence[ToolSpec]) -> None:
        self._kept = kept
        self._writers = writers
        self._tools = tools

    async def __call__(self, task: Task) -> Sequence[str]:
        from ..cache.plans import TaskIntent, intent_key, with_open_slots  # it loads many patterns, which other tasks do without

        intent = TaskIntent.of(last_words(task.messages))
        key = intent_key(task, intent, [tool.name for tool in self._tools])
        may_keep = bool(intent.words) and task.cache != "no-store"
        if may_keep and key in self._kept:
            return with_open_slots(intent.fill(self._kept[key])).splitlines()
        points = _POINT.findall(await self._written(task))
        if points and may_keep:
            while len(self._kept) >= _MOST_PRIORS:
                self._kept.pop(next(iter(self._kept)), None)
            self._kept[key] = intent.template("\n".join(points))
        return points

    async def _written(self, task: Task) -> str:
        """Return the reply of the first writer that gives one; empty if none does."""
        for writer in self._writers:
            try:
                return (await writer.ask(task, prior_request(task_text(task), self._tools), f"prior/{writer.handle.name}")).text
            except FALLBACK_ERRORS:
                continue  # on record as a failed call
        return ""


@dataclass(slots=True)
class _Party:
    """The votes for answers that mean the same."""

    answer: Answer
    first: int
    """The place of its first vote among all votes."""
    votes: int = 0
    odds: float = 0.0


class Ballot:
    """Counts votes.

    Args:
        most: votes that are cast if none is spared.
    """

    def __init__(self, most: int) -> None:
        self.cast = 0
        """Votes so far."""
        self._most = most
        self._parties: list[_Party] = []

    def add(self, answer: Answer, confidence: float | None) -> None:
        """Count a vote. `confidence`: 0 to 1; None: unknown."""
        party = next((party for party in self._parties if mean_same(party.answer, answer)), None)
        if party is None:
            party = _Party(answer, first=self.cast)
            self._parties.append(party)
        party.votes += 1
        party.odds += 0.0 if confidence is None else max(log_odds(confidence), 0.0)
        self.cast += 1

    @property
    def leader(self) -> int:
        """The place of the leading answer's first vote among all votes; of equal ones the earliest leads."""
        return self._leading.first

    @property
    def is_settled(self) -> bool:
        """The leading answer is far enough ahead."""
        leading = self._leading
        rivals = [party for party in self._parties if party is not leading]
        votes = leading.votes - max((party.votes for party in rivals), default=0)
        odds = leading.odds - max((party.odds for party in rivals), default=0.0)
        is_sure = votes >= _SURE_LEAD and odds >= _SURE_ODDS
        return is_sure or votes >= _SETTLING_LEAD or votes > self._most - self.cast

    @property
    def _leading(self) -> _Party:
        return max(self._parties, key=lambda party: party.votes)


async def with_votes(turn: AgentTurn, state: TaskState, runtime: TaskRuntime) -> TaskState:
    """Let further samples of the near agent that drafted vote on its answer, and return the state's update.

    Only an answer in words that was given in one step is voted on, and none that was shown as it was written.
    """
    task, draft = turn.task, turn.draft
    is_one_step = len(state["messages"]) == len(task.messages) + 1
    if turn.handle.side is Side.FAR or task.output_schema is not None or turn.was_shown(runtime):
        return {}
    said = value_of(Message, state["messages"][-1])
    if draft is None or not is_one_step or not said.text.strip() or said.tool_calls:
        return {}
    return await _elected(turn, draft, said.text, CallLog(state, runtime))


async def _elected(turn: AgentTurn, draft: Attempt, text: str, log: CallLog) -> TaskState:
    """Sample until the ballot is settled or all votes are cast. A sample that fails is no vote."""
    task, asked = turn.task, AskedAgent(turn.handle, log, "vote")
    ballot, samples = Ballot(task.policy.evidence.votes), [(text, draft.confidence)]
    ballot.add(Answer.of_text(text, prompt=last_words(task.messages)), draft.confidence)
    temperature = second_sample_temperature(task.policy.temperature, turn.handle.side, is_again=True)
    for number in range(1, task.policy.evidence.votes):
        if ballot.is_settled:
            break
        try:
            key = f"{turn.position}/vote/{number}"
            reply = await asked.ask(task, task.messages, key, tool_choice=ToolChoice.NONE, temperature=temperature)
        except FALLBACK_ERRORS:  # on record as a failed call
            continue
        if reply.text.strip():
            samples.append((reply.text, reply.finished.confidence))
            ballot.add(Answer.of_text(reply.text, prompt=last_words(task.messages)), reply.finished.confidence)
    voted: TaskState = {"calls": log.as_json}
    if ballot.leader == 0:
        return voted
    elected, confidence = samples[ballot.leader]
    messages = [*turn.state["messages"][:-1], as_json(Message.assistant(elected))]
    return {**voted, "messages": messages, "draft": as_json(draft.model_copy(update={"confidence": confidence}))}
