"""The evidence about a supervised task after a step of its executor, and the move that a navigator, or chance, chooses by it."""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ...protocols import Message, Side
from ..routing.call_looks import told_in
from ..routing.navigator import Navigator, navigated
from ..task.events import EVIDENCE, Move
from ..task.results import ToolOutcome
from ..task.task import last_words
from .calls import TaskRuntime, emit
from .state import TaskState, value_of
from .supervised import Oversight, canonical
from .turn import acts

if TYPE_CHECKING:
    from .graphs import TaskNodes

_WORD: Final = re.compile(r"[^\W_]+")
_LINE: Final = re.compile(r"^\s*\S", re.MULTILINE)
_LEAST_DOUBT: Final = 1e-6


class NavigatorNodes:
    """The node in which the executor acts and a move is chosen for its step."""

    def __init__(self, nodes: "TaskNodes") -> None:
        self._nodes = nodes
        self._loaded: dict[Path, Navigator] = {}

    async def act(self, state: TaskState, runtime: TaskRuntime) -> TaskState:
        """Let the executor take a turn, and choose the course from there."""
        after = await self._nodes.act(state, runtime)
        return {**after, "move": self._move({**state, **after}, runtime)}

    def _move(self, state: TaskState, runtime: TaskRuntime) -> str | None:
        view = Oversight(state)
        policy = view.policy
        has_stepped = state["draft"] is not None and state["messages"][-1]["role"] == "assistant"
        if not (has_stepped and view.is_navigated and view.has_turns_left):
            return None
        evidence = evidence_of(view, runtime, self._nodes)
        chosen = navigated(
            self._navigator(policy.navigator),
            [evidence[name] for name in EVIDENCE],
            explore=policy.explore,
            asked=view.decision.plan_price / (view.task.policy.objective.quality or 1.0),
        )
        emit(runtime, chosen)
        return chosen.move

    def _navigator(self, path: Path | None) -> Navigator | None:
        if path is None:
            return None
        if path not in self._loaded:
            self._loaded[path] = Navigator.load(path)
        return self._loaded[path]


def evidence_of(view: Oversight, runtime: TaskRuntime, nodes: "TaskNodes") -> Mapping[str, float]:
    """Return the figures of a state in which the executor's last step has not been carried out."""
    *before, said = [value_of(Message, message) for message in view.state["messages"]]
    work = [*before[len(view.task.messages) :], said]
    own = [call["confidence"] for call in _since_plan(view) if call["confidence"] is not None]
    prompt = _words(last_words(view.task.messages))
    made = [call for message in work for call in message.tool_calls]
    results = [message.tool_result for message in work if message.tool_result is not None]
    covered = _words(" ".join([*map(canonical, made), *(result.content for result in results), said.text]))
    step = _words(said.text or " ".join(canonical(call).partition(" ")[2] for call in said.tool_calls))
    told = _words(told_in(before))
    guidance = view.state["guidance"]
    outcomes = [value_of(ToolOutcome, outcome) for outcome in view.state["tool_calls"]]
    return {
        "lowest confidence": _sureness(min(own, default=None)),
        "last confidence": _sureness(own[-1] if own else None),
        "share of the prompt that is covered": _share(prompt, covered),
        "words of the prompt that are not": math.log1p(len(prompt - covered)),
        "grounded share of the step": _share(step, told),
        "share of the turns": view.share_spent(),
        "turns": math.log1p(view.draft.steps),
        "repeated calls": math.log1p(len(made) - len({canonical(call) for call in made})),
        "tool errors": math.log1p(sum(result.is_error for result in results)),
        "has a plan": float(bool(guidance)),
        "plan progress": min(len(made) / max(len(_LINE.findall(guidance)), 1), 2.0) if guidance else 0.0,
        "far calls": math.log1p(sum(call["side"] == Side.FAR for call in view.state["calls"])),
        "answers": float(not said.tool_calls),
        "may change something": float(any(acts(call, nodes.context(runtime)) for call in said.tool_calls)),
        "has changed something": math.log1p(sum(outcome.may_have_acted for outcome in outcomes)),
        "words of the prompt": math.log1p(len(prompt)),
    }


def _since_plan(view: Oversight) -> list[dict]:
    calls = view.state["calls"]
    last = max((index for index, call in enumerate(calls) if call["role"] == "plan" or call["verdict"] == "intervene"), default=-1)
    return [call for call in calls[last + 1 :] if call["role"] == "execute" and call["error"] is None]


def _words(text: str) -> set[str]:
    return set(_WORD.findall(text.casefold()))


def _share(words: set[str], known: set[str]) -> float:
    return len(words & known) / len(words) if words else 1.0


def _sureness(confidence: float | None) -> float:
    """Return the decades of doubt that a confidence leaves out: 3 for 0.999; 0 where it is unknown."""
    return 0.0 if confidence is None else -math.log10(max(1 - confidence, _LEAST_DOUBT))
