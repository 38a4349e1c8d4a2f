"""Time and dollars of `speculate` over those of `cloud`, on recorded steps of the shipped models.

`proposals` has recorded what far does on tasks of both worlds, and what near proposes at each step, with its confidence: near agrees with
far as often as it does there, and at the same steps. A far step takes 1 s, a near one 0.1 s, which the event loop skips, so that neither
the time of nearfar itself (`speculate_own_seconds`: of the processor, per task) nor what else the machine does counts. The full
figures have `speculate_real_wall`, too, for which 25 tasks at once take all of that time. A far call costs what its prompt and its reply
cost at 1 to 4 per token, and one that was begun and cancelled counts as one that was paid for as a whole.

The look-ahead knows what was proposed and judged in 50 tasks of another seed. `speculate_waste`: dollars beyond those of `cloud` of the
learned look-ahead over those of the best fixed one at the same wall time; between two fixed ones, a mixture of both counts. Both figures
are of the usual setting and of the thrifty one. `own`: there are also fixed ones, which no setting makes, that follow only what near
proposes by itself, and not what it calls if it has to.
"""

import asyncio
import random
import selectors
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Final, NamedTuple
from unittest.mock import patch

from nearfar import Hybrid, Policy, ScriptedAgent, Side, StepRequest, ToolCall
from nearfar.orchestrator.routing.habits import AgreementRates
from nearfar.orchestrator.task.policy import SpeculateConfig
from nearfar.orchestrator.task.results import JudgedProposal, ToolOutcome
from nearfar.protocols import ToolChoice
from nearfar.protocols.fakes import Reply

from .proposals import SEEDS, WORLDS, recorded
from .recorded_world import RecordedTask, tools_of

_SEED: Final = 90210
_FAR, _NEAR = 1.0, 0.1
_DEAR: Final = 4
"""Price of a token that is written over one that is read."""
_AT_ONCE: Final = 25
_THRIFTY: Final = 0.8
_THRIFTS: Final = (0.0, 0.25, 0.65, 0.95)
"""The full figures have these settings, too."""
_KNOWN: Final = 50
"""Tasks whose proposals are known."""
_LONGEST: Final = 600.0
"""Seconds of a task, however busy the machine is."""
_DRAWS: Final = 1000
_Setting = tuple[str, Mapping[str, object]]
_SETTINGS: Final[Mapping[str, _Setting]] = {
    "cloud": ("cloud", {}),
    "usual": ("speculate", {}),
    "thrifty": ("speculate", {"thrift": _THRIFTY}),
    **{f"fixed {k}": ("speculate", {"thrift": 0.0, "maximum_ahead": k, "learn": False}) for k in (1, 2)},
    **{f"fixed {k} own": ("speculate", {"thrift": 0.0, "maximum_ahead": k, "learn": False}) for k in (1, 2, 4)},
}


class _Taken(NamedTuple):
    """The figures of one task."""

    seconds: float
    dollars: float


def figures(data: Path, *, quick: bool) -> dict[str, Any]:
    """Return the figures of both worlds. `data` is not used."""
    scans = patch("nearfar.orchestrator.safety.scanner.run_in_daemon_thread", _at_once)
    with scans, asyncio.Runner(loop_factory=_SkippingLoop) as runner:
        found = runner.run(_figures(12, ()) if quick else _figures(100, _THRIFTS))
    return found if quick else {**found, "speculate_real_wall": {world: asyncio.run(_real_wall(world)) for world in WORLDS}}


async def _real_wall(world: str) -> float:
    alone, usual = [await _taken(world, name, _SETTINGS[name], _AT_ONCE) for name in ("cloud", "usual")]
    return _ratio(usual, alone, 0)[0]


class _SkippingLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer where there is nothing else to do."""

    def __init__(self) -> None:
        selector = _SkippingSelector()
        super().__init__(selector)
        self._skipping = selector

    def time(self) -> float:
        """Return the seconds that were skipped."""
        return self._skipping.skipped


class _SkippingSelector(selectors.DefaultSelector):
    """A selector that counts the seconds which it was to wait, and returns at once."""

    skipped = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return what is ready within a `timeout`, which is counted and not waited for. Without one, wait."""
        ready = super().select(timeout if timeout is None else 0)
        if not ready and timeout is not None:
            self.skipped += max(timeout, 0.0)
        return ready


async def _at_once(work: Callable[[], object]) -> object:
    """Do a piece of work in the event loop: one whose clock jumps must not wait for a thread."""
    return work()


async def _figures(tasks: int, thrifts: Sequence[float]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for world in WORLDS:
        found |= await _figures_of(world, tasks, thrifts)
    for name in ("wall", "dollars", "thrifty_wall", "thrifty_dollars"):
        found[f"speculate_{name}"] = max(found[f"speculate_{name}_{world}"] for world in WORLDS)
    found["speculate_waste"] = max(waste for world in WORLDS for waste in found[f"speculate_waste_{world}"])
    return found


async def _figures_of(world: str, tasks: int, thrifts: Sequence[float]) -> dict[str, Any]:
    taken, own = dict[str, list[_Taken]](), dict[str, float]()
    for name, given in _SETTINGS.items():
        began = time.process_time()
        taken[name] = await _taken(world, name, given, tasks)
        own[name] = (time.process_time() - began) / tasks
    alone = taken["cloud"]
    found: dict[str, Any] = {f"speculate_own_seconds_{world}": own["usual"], f"speculate_own_seconds_cloud_{world}": own["cloud"]}
    for name, setting in (("", "usual"), ("thrifty_", "thrifty")):
        for place, figure in enumerate(("wall", "dollars")):
            found[f"speculate_{name}{figure}_{world}"], interval = _ratio(taken[setting], alone, place)
            found[f"speculate_{name}{figure}_{world}_interval"] = interval
    fixed = {name: each for name, each in taken.items() if name.startswith("fixed")}
    found[f"speculate_fixed_{world}"] = {name: _both(each, alone) for name, each in fixed.items()}
    made = [each for name, each in fixed.items() if not name.endswith("own")]
    found[f"speculate_waste_{world}"] = [_waste(taken[name], made, alone) for name in ("usual", "thrifty")]
    found[f"speculate_waste_own_{world}"] = [_waste(taken[name], list(fixed.values()), alone) for name in ("usual", "thrifty")]
    curve = {thrift: await _taken(world, "curve", ("speculate", {"thrift": thrift}), tasks) for thrift in thrifts}
    known = {**curve, SpeculateConfig().thrift: taken["usual"], _THRIFTY: taken["thrifty"]}
    found[f"speculate_by_thrift_{world}"] = [[thrift, *_both(known[thrift], alone)] for thrift in sorted(known)]
    return found


async def _taken(world: str, name: str, setting: _Setting, tasks: int) -> list[_Taken]:
    """Return the figures of the tasks in one setting, which has a name."""
    strategy, given = setting
    fresh = [RecordedTask(steps) for steps in recorded(world, SEEDS[1]) if steps][:tasks]
    named = {f"{world} {number}": task for number, task in enumerate(fresh)}
    spent = dict.fromkeys(named, 0.0)

    def far_step(request: StepRequest) -> Reply:
        task, usage = named[request.messages[0].text], named[request.messages[0].text].usage(request)
        spent[request.messages[0].text] += usage.input_tokens + _DEAR * usage.output_tokens
        return task.far(request)

    def near_step(request: StepRequest) -> Reply:
        has_to_call = request.tool_choice is ToolChoice.REQUIRED
        return "I would answer." if has_to_call and name.endswith("own") else named[request.messages[0].text].near(request)

    async def one(number: int, task: str) -> _Taken:
        async with slots:
            await asyncio.sleep(number % _AT_ONCE / _AT_ONCE)
            began = asyncio.get_running_loop().time()
            result = await hybrid.run(task, strategy=strategy, task_class=world)
            assert result.agent == "far", result.reasons
            return _Taken(asyncio.get_running_loop().time() - began, spent[task])

    far, near = ScriptedAgent(far_step, name="far", side=Side.FAR, pace=_FAR), ScriptedAgent(near_step, name="near", pace=_NEAR)
    limits = {"maximum_turns": 40, "attempt_timeout": _LONGEST}
    policy = Policy.model_validate({"sensitivity": "public", **limits, "speculate": given})
    async with Hybrid(near=near, far=far, policy=policy, tools=tools_of(fresh)) as hybrid:
        _teach(hybrid._router.outcomes.agreement, world)
        slots = asyncio.Semaphore(_AT_ONCE)
        return list(await asyncio.gather(*map(one, range(len(named)), named)))


def _teach(rates: AgreementRates, world: str) -> None:
    """Let it know what came of the proposals of earlier tasks, and what their tools have said."""
    earlier = [steps for steps in recorded(world, SEEDS[0]) if steps][:_KNOWN]
    for step in (step for steps in earlier for step in steps):
        names, confidence, confirmed, _ = step["near"][-1]
        is_instead = len(step["near"]) == 2
        answer_confidence = step["near"][0][1] if is_instead else None
        told = {"confidence": confidence, "is_instead": is_instead, "answer_confidence": answer_confidence, "confirmed": confirmed}
        if names:
            rates.learn(JudgedProposal(task_class=world, **told))
    for tool in tools_of([RecordedTask(steps) for steps in earlier]):
        calls = [ToolCall(id="known", name=tool.name, arguments={"at": str(number)}) for number in range(2)]
        said = f"{tool.name} done"
        effect = tool.declared.effect
        rates.note_results("", [ToolOutcome(agent="far", call=call, effect=effect, outcome="done", result=said) for call in calls])


def _ratio(taken: Sequence[_Taken], alone: Sequence[_Taken], place: int) -> tuple[float, list[float]]:
    """Return the ratio of the sums over the same tasks, and its 95 % interval."""
    chance, pairs = random.Random(_SEED), [(each[place], other[place]) for each, other in zip(taken, alone, strict=True)]
    draws = sorted(_quotient(chance.choices(pairs, k=len(pairs))) for _ in range(_DRAWS))
    return _quotient(pairs), [draws[int(0.025 * _DRAWS)], draws[int(0.975 * _DRAWS)]]


def _both(taken: Sequence[_Taken], alone: Sequence[_Taken]) -> list[float]:
    """Return the ratios of time and of dollars."""
    return [_ratio(taken, alone, place)[0] for place in (0, 1)]


def _quotient(pairs: Sequence[tuple[float, float]]) -> float:
    return sum(first for first, _ in pairs) / sum(second for _, second in pairs)


def _waste(learned: Sequence[_Taken], fixed: Sequence[Sequence[_Taken]], alone: Sequence[_Taken]) -> float:
    """Return what the learned look-ahead wastes over what a mixture of the two fixed ones around its own wall time does."""
    points = [(1.0, 0.0), *((_ratio(each, alone, 0)[0], _extra(each, alone)) for each in fixed)]
    wall = _ratio(learned, alone, 0)[0]
    reach = [
        low[1] + (high[1] - low[1]) * (low[0] - wall) / (low[0] - high[0])
        for low in points
        for high in points
        if high[0] < low[0] and high[0] <= wall <= low[0]
    ]
    best = min(reach, default=max(waste for _, waste in points))  # faster than any of them
    return _extra(learned, alone) / best


def _extra(taken: Sequence[_Taken], alone: Sequence[_Taken]) -> float:
    return fmean(each.dollars - other.dollars for each, other in zip(taken, alone, strict=True))
