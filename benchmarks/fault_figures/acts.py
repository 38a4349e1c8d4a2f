"""Hand-overs in the middle of work: what drafts do that are thrown away, and whether idempotent effects happen twice.

`rejected_draft_effects` counts calls of tools that are not declared `read`, in random cascades: those of drafts that did not stand, in a
step that the evidence already spoke against. `untold_effects` counts the calls of such drafts of which the agent that took over was not
told, or which `Result.tool_calls` lacks.

`idempotent_repeats` counts, over hand-overs, retries and resumes in every strategy that runs tools, the effects beyond those that were
meant, as a service sees them that knows idempotency keys; `idempotent_lost` counts those that are missing.
"""

import asyncio
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

from nearfar import Hybrid, Policy, Tool, effect_key, tool
from nearfar.orchestrator.task.stores import RunsConfig
from nearfar.protocols import Finished, FinishReason, ScriptedAgent, Side, StepRequest, ToolCall, Unavailable, Usage
from nearfar.protocols.fakes import Reply

_SEED: Final = 2026
_EFFECTS: Final = ("read", "idempotent", "at_most_once")
_STRATEGIES: Final = ("device", "cloud", "route", "cascade", "pevr", "eva", "subtasks")


def figures(data: Path, *, quick: bool) -> dict[str, Any]:
    """Both, from fewer tasks where it is to be quick."""
    random = Random(_SEED)
    return asyncio.run(_figures(random, cascades=60 if quick else 1000, deliveries=6 if quick else 60))


async def _figures(random: Random, *, cascades: int, deliveries: int) -> dict[str, Any]:
    drafts = [await _cascade(random) for _ in range(cascades)]
    with tempfile.TemporaryDirectory() as folder:
        tasks = [(strategy, Path(folder, f"{strategy}-{number}")) for strategy in _STRATEGIES for number in range(deliveries)]
        sent = [await _delivery(random, strategy, place) for strategy, place in tasks]
    return {
        "random_cascades": len(drafts),
        "random_cascades_handed_over": sum(draft.was_handed_over for draft in drafts),
        "random_cascades_effects": sum(draft.effects for draft in drafts),
        "rejected_draft_effects": sum(draft.rejected for draft in drafts),
        "untold_effects": sum(draft.untold for draft in drafts),
        "idempotent_tasks": len(sent),
        "idempotent_repeats": sum(max(extra, 0) for extra in sent),
        "idempotent_lost": sum(max(-extra, 0) for extra in sent),
    }


@dataclass
class _Draft:
    """What became of one random cascade."""

    was_handed_over: bool
    effects: int
    """Of the draft."""
    rejected: int
    untold: int


async def _cascade(random: Random) -> _Draft:
    made: list[str] = []
    tools = [_noting(effect, made) for effect in _EFFECTS]
    steps = [_step(random, number) for number in range(random.randint(1, 5))]
    minimum = random.choice((0.3, 0.5, 0.7, 0.9))
    near = ScriptedAgent([*(reply for reply, _ in steps), _end(random)], name="near")
    far = ScriptedAgent(["Done."] * 2, name="far", side=Side.FAR)
    policy = Policy.model_validate({"strategy": "cascade", "sensitivity": "public", "minimum_confidence": minimum})
    async with Hybrid(near=near, far=far, tools=tools, policy=policy) as hybrid:
        result = await hybrid.run("Do it")
    stands = result.agent == "near"
    told = far.requests[0].messages[-1].text if far.requests else ""
    listed = [json.dumps(outcome.call.arguments["mark"]) for outcome in result.tool_calls]
    acts = [mark for mark in made if not mark.startswith("read")]
    return _Draft(
        was_handed_over=not stands,
        effects=len(acts),
        rejected=0 if stands else sum(mark in _doubted(steps, minimum) for mark in acts),
        untold=sum(json.dumps(mark) not in listed or not (stands or mark in told) for mark in acts),
    )


def _noting(effect: str, made: list[str]) -> Tool:
    def act(mark: str) -> str:
        """Do something."""
        made.append(mark)
        return f"{mark} is done"

    return tool(name=effect, effect=effect, source="internal_tool")(act)


def _step(random: Random, number: int) -> tuple[Reply, float | None]:
    """A step of one to three calls, and its confidence."""
    kinds = random.choices(_EFFECTS, k=random.randint(1, 3))
    marks = [f"{kind}-{number}-{place}" for place, kind in enumerate(kinds)]
    calls = [ToolCall(id=mark, name=kind, arguments={"mark": mark}) for kind, mark in zip(kinds, marks, strict=True)]
    confidence = random.choice((None, random.random(), random.uniform(0.9, 1.0)))
    return [*calls, _finished(FinishReason.TOOL_CALLS, confidence)], confidence


def _end(random: Random) -> Reply:
    answers: list[Reply] = [Unavailable("out of memory"), ["Done.", _finished(FinishReason.STOP, random.random())]]
    return random.choice(answers)


def _finished(reason: FinishReason, confidence: float | None) -> Finished:
    return Finished(reason=reason, confidence=confidence, usage=Usage(input_tokens=1, output_tokens=1), model="near")


def _doubted(steps: Sequence[tuple[Reply, float | None]], minimum: float) -> set[str]:
    """Marks of the calls in steps from the first one on whose confidence is too low."""
    found: set[str] = set()
    lowest = 1.0
    for reply, confidence in steps:
        lowest = min(lowest, 1.0 if confidence is None else confidence)
        if lowest < minimum and isinstance(reply, list):
            found |= {str(item.arguments["mark"]) for item in reply if isinstance(item, ToolCall)}
    return found


class _Died(BaseException):
    """Stands for the end of the process: of the call nothing is written any more."""


@dataclass
class _Service:
    """Delivers a text once for each key that it is given."""

    random: Random
    is_durable: bool
    delivered: dict[str, str] = field(default_factory=dict)
    faults: int = 2
    """Calls that still go wrong after the service has acted."""

    def deliver(self, text: str) -> str:
        """Deliver a text."""
        self.delivered.setdefault(effect_key(), text)
        if self.faults and self.random.random() < 0.4:
            self.faults -= 1
            raise _Died if self.is_durable and self.random.random() < 0.5 else TimeoutError("no answer from the service")
        return f"{text} is delivered"


class _Executor:
    """A model that delivers a text so many times and takes errors for nothing done. It fails once, after so many steps."""

    def __init__(self, times: int, fails_after: int | None) -> None:
        self._times = times
        self._left = fails_after

    def __call__(self, request: StepRequest) -> Reply:
        opening = request.messages[0].text
        if opening.startswith("Plan the task"):
            return "1. deliver\n2. answer"
        if opening.startswith(("Check the work", "Judge the progress")):
            return "CONTINUE"
        if opening.startswith("Cut the task"):
            return json.dumps({"subtasks": [{"id": "a", "task": "Deliver it", "needs": []}, {"id": "b", "task": "Sum up", "needs": ["a"]}]})
        if "Sum up" in opening:
            return "Delivered."
        return self._worked(request)

    def _worked(self, request: StepRequest) -> Reply:
        if self._left is not None:
            self._left -= 1
            if self._left < 0:
                self._left = None
                return Unavailable("out of memory")
        results = [message.tool_result for message in request.messages if message.tool_result is not None]
        if sum(not result.is_error for result in results) >= self._times:
            return "Delivered."
        return ToolCall(id=f"call-{len(results)}", name="deliver", arguments={"text": "hi"})


async def _delivery(random: Random, strategy: str, folder: Path) -> int:
    """How many effects one task had beyond those that were meant."""
    times, is_durable = random.randint(1, 2), random.random() < 0.7
    service = _Service(random, is_durable)
    deliver = tool(effect="idempotent", source="internal_tool")(service.deliver)
    hands_over = strategy not in ("device", "cloud")
    near = _Executor(times, random.randint(1, 4) if hands_over and random.random() < 0.7 else None)
    far = _Executor(times, random.randint(1, 4) if strategy == "cloud" and random.random() < 0.7 else None)
    policy = Policy.model_validate({"strategy": strategy, "sensitivity": "public", "supervision": {"interval": 1}})

    def hybrid() -> Hybrid:
        agents = {"near": ScriptedAgent(near, confidence=0.9), "far": ScriptedAgent(far, name="far", side=Side.FAR)}
        return Hybrid(**agents, tools=[deliver], policy=policy, records=RunsConfig(folder=folder) if is_durable else None)  # type: ignore[arg-type]  # agents

    is_done = False
    while not is_done:
        async with hybrid() as opened:
            try:
                await opened.run("Deliver hi", idempotency_key="task")  # one that was begun before goes on
                is_done = True
            except* _Died:
                pass  # another process goes on with it
    return len(service.delivered) - times
