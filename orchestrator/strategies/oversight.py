"""One look at a supervised task: whether it is to be checked now, whether the budget buys that, and the move that a navigator, or chance,
chooses by the evidence after a step of its executor.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pydantic import JsonValue

from ...protocols import Message, Side, ToolCall, ToolResult
from ...protocols.steps import Value
from ..routing.call_looks import told_in
from ..routing.navigator import Navigator, SupervisionChoice, navigated
from ..routing.steering import is_supervision_weighed
from ..task import Task, last_words
from ..task.decisions import RouteDecision
from ..task.events import EVIDENCE, Move
from ..task.modes import Strategy
from ..task.policy import Cause, SupervisionConfig, Trigger, Verdict
from ..task.results import Attempt, Call, ToolOutcome
from .calls import TaskRuntime, emit
from .state import Json, TaskState, as_json, value_of
from .turn import acts

if TYPE_CHECKING:
    from .graphs import TaskNodes


_WORD: Final = re.compile(r"\w+")
"""A word that may be news: `order_17` is another one than `order_16`."""
_PLAIN_WORD: Final = re.compile(r"[^\W_]+")
"""A word that a prompt and a call have in common: `send_mail` has the `mail` of the prompt."""
_LINE: Final = re.compile(r"^\s*\S", re.MULTILINE)
_SUPERVISES: Final = ("plan", "prior", "verify")
"""Roles of the calls of a supervisor."""
_LEAST_DOUBT: Final = 1e-6
_MOST_PROGRESS: Final = 2.0


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The facts about the executor's work after a turn has acted."""

    turn: int
    """Turns that have acted, over all resets."""
    covered: Sequence[Message]
    """The executor's conversation up to the last check or reset, its prompt included."""
    fresh: Sequence[Message]
    """Its conversation since then."""
    confidence: float | None
    """The confidence of the last step; None where unknown, which triggers nothing."""
    share_spent: float
    """The spent share of the turns or of the timeout: the larger one."""
    half_was_covered: bool
    """A check has taken place since half was spent."""
    answered: bool = False
    """The last turn did not act but gave the answer."""


def cause_of_check(supervision: SupervisionConfig, evidence: Evidence) -> Cause | None:
    """Return the cause of a check that is due now: the schedule, else the first trigger that fires, in the configured order.

    An answer ends the task, so only the trigger for answers asks for a check of it.
    """
    if evidence.answered:
        return Trigger.ANSWER if Trigger.ANSWER in supervision.triggers else None
    if supervision.interval is not None and evidence.turn % supervision.interval == 0:
        return "interval"
    return next((trigger for trigger in supervision.triggers if _FIRES[trigger](supervision, evidence)), None)


def _has_error(_: SupervisionConfig, evidence: Evidence) -> bool:
    return any(result.is_error for result in _results(evidence.fresh))


def _loops(supervision: SupervisionConfig, evidence: Evidence) -> bool:
    counts = Counter(canonical(call) for message in evidence.fresh for call in message.tool_calls)
    return any(count >= supervision.loop_calls for count in counts.values())


def _stalls(supervision: SupervisionConfig, evidence: Evidence) -> bool:
    starts = [index for index, message in enumerate(evidence.fresh) if message.tool_calls]
    if len(starts) < supervision.stall_turns:
        return False
    first = starts[-supervision.stall_turns]
    known = _words([*evidence.covered, *evidence.fresh[:first]])
    return not _words(evidence.fresh[first:]) - known


def _is_long(supervision: SupervisionConfig, evidence: Evidence) -> bool:
    return any(len(result.content) > supervision.observation_characters for result in _results(evidence.fresh))


def _is_unsure(supervision: SupervisionConfig, evidence: Evidence) -> bool:
    return evidence.confidence is not None and evidence.confidence < supervision.minimum_confidence


def _is_half_spent(_: SupervisionConfig, evidence: Evidence) -> bool:
    return evidence.share_spent >= 0.5 and not evidence.half_was_covered


def _has_answered(_: SupervisionConfig, evidence: Evidence) -> bool:
    return evidence.answered


_FIRES: Mapping[Trigger, Callable[[SupervisionConfig, Evidence], bool]] = {
    Trigger.TOOL_ERROR: _has_error,
    Trigger.LOOP: _loops,
    Trigger.STALL: _stalls,
    Trigger.LONG_OBSERVATION: _is_long,
    Trigger.LOW_CONFIDENCE: _is_unsure,
    Trigger.HALF_SPENT: _is_half_spent,
    Trigger.ANSWER: _has_answered,
}


def canonical(call: ToolCall) -> str:
    """Return a call as text such that equal calls are equal text: keys sorted, white space single, 2.0 the same as 2."""
    return f"{call.name} {json.dumps(_canonical(call.arguments), sort_keys=True)}"


def _canonical(value: JsonValue) -> JsonValue:
    match value:
        case dict():
            return {key: _canonical(item) for key, item in value.items()}
        case list():
            return [_canonical(item) for item in value]
        case str():
            return " ".join(value.split())
        case float() if value.is_integer():
            return int(value)
    return value


def _results(messages: Sequence[Message]) -> list[ToolResult]:
    return [message.tool_result for message in messages if message.tool_result is not None]


def _words(messages: Sequence[Message]) -> set[str]:
    """Return the words that the executor was told: prompts and results, but neither errors nor its own text."""
    prompts = [message.text for message in messages if message.role in ("user", "system")]
    results = [result.content for result in _results(messages) if not result.is_error]
    return set(_WORD.findall(" ".join([*prompts, *results]).casefold()))


class Watch(Value):
    """The part of a supervised task that its checks have covered so far."""

    covered: int
    """Messages of the executor's conversation that the last check has seen, or that it began with after a reset."""
    half: bool = False
    """A check has taken place since half of the turns or of the time was spent."""
    is_over: bool = False
    """The supervisor failed, and the executor goes on alone."""


class Oversight:
    """One look at a supervised task: who does what, the work so far, and whether it is to be checked now."""

    def __init__(self, state: TaskState) -> None:
        self.state = state
        self.task = value_of(Task, state["task"])
        self.decision = value_of(RouteDecision, state["decision"])
        self.watch = Watch.model_validate(state["watch"]) if state["watch"] is not None else Watch(covered=len(self.task.messages))

    @property
    def policy(self) -> SupervisionConfig:
        return self.task.policy.supervision

    @property
    def executor(self) -> str:
        return self.decision.candidates[self.state["position"]]

    @property
    def is_on(self) -> bool:
        """True if the current agent is supervised: an agent that took over from a failed one works alone."""
        return self.decision.supervisor is not None and self.state["position"] == 0 and not self.watch.is_over

    @property
    def is_supervised(self) -> bool:
        """The current agent is supervised, and no budget has better uses than that."""
        return self.is_on and self.decision.is_supervisor_bought is not False

    @property
    def is_up_for_choice(self) -> bool:
        """In `eva`, a budget over all tasks may have room for a check of the answer, and has not chosen yet."""
        settings, has_chosen = self.task.policy.router, self.decision.is_supervisor_bought is not None
        is_counted = self.decision.strategy is Strategy.EVA and settings.dollar_rate is None
        return is_counted and not has_chosen and is_supervision_weighed(settings, self.decision)

    @property
    def is_navigated(self) -> bool:
        """A navigator, or chance, chooses when the supervisor is asked."""
        return self.policy.is_navigated and self.decision.strategy is Strategy.PEVR and self.is_supervised

    @property
    def is_at_first_step(self) -> bool:
        """The first step was made, and has neither acted nor led to a plan."""
        has_stepped = self.state["draft"] is not None and self.state["messages"][-1]["role"] == "assistant"
        return has_stepped and self.state["acted"] == 0 and not any(call["role"] == "plan" for call in self.state["calls"])

    @property
    def work(self) -> list[Message]:
        """The executor's conversation behind its prompt."""
        return [value_of(Message, message) for message in self.state["messages"][len(self.task.messages) :]]

    def cause(self) -> Cause | None:
        """Return the cause of a check that is due now; None if none is. With no turn left, a check could change nothing, and is not
        made."""
        if not self.is_supervised or not self.has_turns_left:
            return None
        if self.is_navigated:
            return "navigator" if self.state.get("move") == Move.CHECK else None
        messages = [value_of(Message, message) for message in self.state["messages"]]
        evidence = Evidence(
            turn=self.state["acted"],
            covered=messages[: self.watch.covered],
            fresh=messages[self.watch.covered :],
            confidence=self.confidence,
            share_spent=self.share_spent(),
            half_was_covered=self.watch.half,
            answered=has_answered(self.state),
        )
        may_be_bought = evidence.answered and self.is_up_for_choice
        return cause_of_check(self.policy, evidence) or (Trigger.ANSWER if may_be_bought else None)

    def doubt(self) -> str | None:
        """Return why the last step, which has not acted yet, must wait for a plan; None if it need not."""
        if self.is_navigated:
            return f"step {self.draft.steps} of {self.executor} was to wait for a plan" if self.state.get("move") == Move.PLAN else None
        limit = self.policy.plan_below
        if limit is None or not self.is_at_first_step or not self.is_supervised or not self.has_turns_left:
            return None
        confidence = self.confidence
        if confidence is None or confidence < limit:
            known = "unknown" if confidence is None else f"{confidence:.6g}, below {limit:g}"
            return f"the confidence of {self.executor}'s first step is {known}, so it was to wait for a plan"
        has_room = self.decision.is_supervisor_bought
        return f"the budget has room for a plan, so {self.executor}'s first step was to wait for one" if has_room else None

    @property
    def draft(self) -> Attempt:
        draft = self.state["draft"]
        assert draft is not None, "an attempt is under way"
        return value_of(Attempt, draft)

    @property
    def act_doubt(self) -> str | None:
        """Why the calls of the last message, which have not run yet, are to be looked at; None where they are not, or there are none."""
        is_pending = bool(self.state["messages"][-1]["tool_calls"])
        return self.state["act_doubt"] if is_pending else None

    @property
    def has_turns_left(self) -> bool:
        return self.draft.steps < self.task.policy.maximum_turns

    @property
    def confidence(self) -> float | None:
        """The confidence of the executor's last step; None: unknown."""
        return next((call["confidence"] for call in reversed(self.state["calls"]) if call["role"] == "execute"), None)

    def share_spent(self) -> float:
        """Return the share of the turns, or of the task's timeout, that is spent: the larger one."""
        draft = self.draft
        turns = draft.steps / self.task.policy.maximum_turns
        if self.task.timeout is None:
            return turns
        supervision: float = sum(call["seconds"] for call in self.state["calls"] if call["role"] != "execute")
        return max(turns, (draft.seconds + supervision) / self.task.timeout)

    def watch_after_check(self, messages: int) -> Watch:
        """Return the watch after a check that has seen everything. `messages`: the length of the conversation from then on."""
        return Watch(covered=messages, half=self.share_spent() >= 0.5)

    def alone(self, reason: str) -> TaskState:
        """Return the state in which the executor goes on without a supervisor."""
        watch = self.watch.model_copy(update={"is_over": True})
        return {"watch": as_json(watch), "reasons": [*self.state["reasons"], f"{reason}; {self.executor} goes on alone"]}


def has_answered(state: TaskState) -> bool:
    """Return whether the conversation ends with the executor's answer, and not with a message of the task itself."""
    last = state["messages"][-1]
    return len(state["messages"]) > len(state["task"]["messages"]) and last["role"] == "assistant" and not last["tool_calls"]


class Purchase:
    """The budget's choice for one task whether its supervisor is asked. It is made once, and counted again where the task went another way
    in the end."""

    def __init__(self, nodes: "TaskNodes", view: Oversight, runtime: TaskRuntime) -> None:
        self._view = view
        self._is_made = view.decision.is_supervisor_bought
        self._choice: SupervisionChoice | None = None
        task, supervisor = view.task, view.decision.supervisor
        if supervisor is not None and is_supervision_weighed(task.policy.router, view.decision):
            account = nodes.context(runtime).account
            self._choice = SupervisionChoice(
                nodes.router.steering,
                task,
                view.decision,
                prices=nodes.pool[supervisor].prices,
                tools=nodes.context(runtime).tools,
                commitments=None if account is None else account.commitments,
            )

    @property
    def counts_tasks(self) -> bool:
        """A budget chooses in every task, and not only where the supervisor would be asked anyway."""
        return self._choice is not None and self._choice.counts_tasks

    @property
    def price(self) -> float:
        """The worth, in right outcomes, that a budget of dollars asks one call of the supervisor to bring."""
        return 0.0 if self._choice is None else self._choice.price

    @property
    def noted(self) -> TaskState:
        """The state's update that keeps the choice."""
        if self._is_made is self._view.decision.is_supervisor_bought:
            return {}
        return {"decision": as_json(self._view.decision.model_copy(update={"is_supervisor_bought": self._is_made}))}

    @property
    def refusal(self) -> str:
        return f"{self._view.decision.supervisor} is not asked, as the budget has better uses; {self._view.executor} goes on alone"

    def is_made(self, gain: float | None = None, *, is_doubted: bool = True) -> bool:
        """Return whether the supervisor may be asked. The first call chooses; the arguments are those of `SupervisionChoice.buys`."""
        if self._choice is not None and self._is_made is None:
            self._is_made = self._choice.buys(gain, is_doubted=is_doubted)
        return self._is_made is not False

    def conclude(self, calls: Sequence[Json], given_up: Sequence[Json]) -> None:
        """Count the task at its end. `calls`: all that were made; `given_up`: the attempts before the one that has answered."""
        if self._choice is None:
            return
        supervisor = self._view.decision.supervisor
        self._choice.learn([value_of(Call, call) for call in calls if call["agent"] == supervisor and call["role"] in _SUPERVISES])
        went_far = None if given_up else any(call["side"] == Side.FAR for call in calls)
        if self._is_made is not None:
            self._choice.correct(is_bought=self._is_made, went_far=went_far)
        elif went_far is not None:
            self._choice.pass_by(went_far=went_far)


class NavigatorNodes:
    """The node in which the executor of `pevr` acts, after which a move is chosen for its step."""

    def __init__(self, nodes: "TaskNodes") -> None:
        self._nodes = nodes
        self._loaded: dict[Path, Navigator] = {}

    async def act(self, state: TaskState, runtime: TaskRuntime) -> TaskState:
        """Let the executor take a turn, and choose how to go on. Raises `ConfigError` for a navigator that cannot be used."""
        after = await self._nodes.act(state, runtime)
        bought = self._bought({**state, **after}, runtime)
        return {**after, **bought, "move": self._move({**state, **after, **bought}, runtime)}

    def _bought(self, state: TaskState, runtime: TaskRuntime) -> TaskState:
        """Return the state's update by the budget's choice whether the supervisor is asked, where it is due after the first step."""
        view = Oversight(state)
        purchase = Purchase(self._nodes, view, runtime)
        limit, is_navigated = view.policy.plan_below, view.is_navigated
        may_ask = view.is_at_first_step and view.is_supervised and view.has_turns_left and (is_navigated or limit is not None)
        if not may_ask or not (purchase.counts_tasks or (not is_navigated and view.doubt() is not None)):
            return {}
        if is_navigated:
            gain = self._gain(view, runtime)
        else:
            gain = None if limit is None else limit - (view.confidence or 0.0)
        is_made = purchase.is_made(gain)
        return purchase.noted if is_made else {**purchase.noted, "reasons": [*state["reasons"], purchase.refusal]}

    def _gain(self, view: Oversight, runtime: TaskRuntime) -> float | None:
        """Return by how much a move that asks the far side is ahead; None: chance chooses the moves."""
        navigator = self._navigator(view.policy.navigator)
        if navigator is None:
            return None
        evidence = _evidence(view, runtime, self._nodes)
        worth = navigator.worth([evidence[name] for name in EVIDENCE])
        return max(worth[move] for move in Move if move is not Move.STEP) - worth[Move.STEP]

    def _move(self, state: TaskState, runtime: TaskRuntime) -> str | None:
        view = Oversight(state)
        has_stepped = state["draft"] is not None and state["messages"][-1]["role"] == "assistant"
        if not (has_stepped and view.is_navigated and view.has_turns_left):
            return None
        evidence = _evidence(view, runtime, self._nodes)
        policy = view.task.policy
        chosen = navigated(
            self._navigator(policy.supervision.navigator),
            [evidence[name] for name in EVIDENCE],
            explore=policy.supervision.explore,
            asked=Purchase(self._nodes, view, runtime).price,
        )
        emit(runtime, chosen)
        return chosen.move

    def _navigator(self, path: Path | None) -> Navigator | None:
        if path is None:
            return None
        if path not in self._loaded:
            self._loaded[path] = Navigator.load(path)
        return self._loaded[path]


def _evidence(view: Oversight, runtime: TaskRuntime, nodes: "TaskNodes") -> Mapping[str, float]:
    """Return the figures of a state in which the executor's last step has not been carried out."""
    *before, said = [value_of(Message, message) for message in view.state["messages"]]
    work = [*before[len(view.task.messages) :], said]
    made = [canonical(call) for message in work for call in message.tool_calls]
    results = [message.tool_result for message in work if message.tool_result is not None]
    step = said.text or " ".join(canonical(call).partition(" ")[2] for call in said.tool_calls)
    own, guidance = _confidences(view.state["calls"]), view.state["guidance"]
    outcomes = [value_of(ToolOutcome, outcome) for outcome in view.state["tool_calls"]]
    return {
        **_coverage(
            _plain_words(last_words(view.task.messages)),
            _plain_words(" ".join([*made, *(each.content for each in results), said.text])),
        ),
        "lowest confidence": _sureness(min(own, default=None)),
        "last confidence": _sureness(own[-1] if own else None),
        "grounded share of the step": _share(_plain_words(step), _plain_words(told_in(before))),
        "share of the turns": view.share_spent(),
        "turns": math.log1p(view.draft.steps),
        "repeated calls": math.log1p(len(made) - len(set(made))),
        "tool errors": math.log1p(sum(result.is_error for result in results)),
        "has a plan": float(bool(guidance)),
        "plan progress": min(len(made) / max(len(_LINE.findall(guidance)), 1), _MOST_PROGRESS) if guidance else 0.0,
        "far calls": math.log1p(sum(call["side"] == Side.FAR for call in view.state["calls"])),
        "answers": float(not said.tool_calls),
        "may change something": float(any(acts(call, nodes.context(runtime)) for call in said.tool_calls)),
        "has changed something": math.log1p(sum(outcome.may_have_acted for outcome in outcomes)),
    }


def _coverage(prompt: set[str], covered: set[str]) -> Mapping[str, float]:
    """Return how much of the prompt the calls, their results and the last step mention: a task with much left is not done."""
    return {
        "words of the prompt": math.log1p(len(prompt)),
        "share of the prompt that is covered": _share(prompt, covered),
        "words of the prompt that are not": math.log1p(len(prompt - covered)),
    }


def _confidences(calls: Sequence[Json]) -> list[float]:
    """Return those of the executor's steps since it began, or started over from a supervisor's words."""
    found: list[float] = []
    for call in calls:
        if call["error"] is None and (call["role"] == "plan" or call["verdict"] == Verdict.INTERVENE):
            found = []
        elif call["role"] == "execute" and call["confidence"] is not None:
            found.append(call["confidence"])
    return found


def _plain_words(text: str) -> set[str]:
    return set(_PLAIN_WORD.findall(text.casefold()))


def _share(words: set[str], known: set[str]) -> float:
    return len(words & known) / len(words) if words else 1.0


def _sureness(confidence: float | None) -> float:
    """Return the decades of doubt that a confidence leaves out: 3 for 0.999; 0 where it is unknown."""
    return 0.0 if confidence is None else -math.log10(max(1 - confidence, _LEAST_DOUBT))
