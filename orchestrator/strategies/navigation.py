"""The evidence about a supervised task after a step of its executor, and the move that a navigator, or chance, chooses by it."""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ...protocols import Message, Side
from ..routing.call_looks import told_in
from ..routing.navigator import Navigator, navigated
from ..task import last_words
from ..task.events import EVIDENCE, Move
from ..task.policy import Verdict
from ..task.results import ToolOutcome
from .calls import TaskRuntime, emit
from .planning import Purchase
from .state import Json, TaskState, value_of
from .supervised import Oversight, canonical
from .turn import acts

if TYPE_CHECKING:
    from .graphs import TaskNodes

_WORD: Final = re.compile(r"[^\W_]+")
_LINE: Final = re.compile(r"^\s*\S", re.MULTILINE)
_LEAST_DOUBT: Final = 1e-6
_MOST_PROGRESS: Final = 2.0


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
        **_coverage(_words(last_words(view.task.messages)), _words(" ".join([*made, *(each.content for each in results), said.text]))),
        "lowest confidence": _sureness(min(own, default=None)),
        "last confidence": _sureness(own[-1] if own else None),
        "grounded share of the step": _share(_words(step), _words(told_in(before))),
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


def _words(text: str) -> set[str]:
    return set(_WORD.findall(text.casefold()))


def _share(words: set[str], known: set[str]) -> float:
    return len(words & known) / len(words) if words else 1.0


def _sureness(confidence: float | None) -> float:
    """Return the decades of doubt that a confidence leaves out: 3 for 0.999; 0 where it is unknown."""
    return 0.0 if confidence is None else -math.log10(max(1 - confidence, _LEAST_DOUBT))
