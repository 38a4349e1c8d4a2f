"""An effort that is a share of what is usual: what it asks of each agent, and what the result tells of it."""

import math
import random
import re
from pathlib import Path

import pytest

from nearfar import ConfigError, Hybrid, InvalidRequest, Policy, ScriptedAgent, Side, StepRequest
from nearfar.orchestrator.routing.habits import Efforts, LogNormal, ReasonedStep, StepKind
from nearfar.orchestrator.routing.traces import read_outcomes
from nearfar.orchestrator.task.results import AskedReasoning
from nearfar.protocols import Capabilities, Effort, Finished, FinishReason, Sensitivity, Usage
from nearfar.protocols.fakes import Reply

pytestmark = pytest.mark.anyio

_LEVELS = {None: 1.0, Effort.LOW: 0.3, Effort.HIGH: 2.0}
_KIND = StepKind("thinker", Side.NEAR, "execute", "sums", 100)
_WATCHED = 20


class _Thinker:
    """An agent whose steps reason for some hundred tokens, unless they are told otherwise."""

    def __init__(self, side: Side, *, can_limit: bool, seed: int = 7) -> None:
        self._chance = random.Random(seed)
        capabilities = Capabilities(tools=True, json_schema=True, cancellation=True, reasoning_limit=can_limit)
        self.agent = ScriptedAgent(self._reply, name="thinker", side=side, capabilities=capabilities)

    def _reply(self, request: StepRequest) -> Reply:
        tokens = round(self._chance.lognormvariate(math.log(500), 0.4) * _LEVELS[request.effort])
        tokens = min(tokens, request.max_reasoning_tokens or tokens)
        usage = Usage(input_tokens=100, output_tokens=tokens + 5, reasoning_tokens=tokens)
        return ("Done.", Finished(reason=FinishReason.STOP, usage=usage, model="thinker"))


async def _mean_after_thirty(hybrid: Hybrid, effort: float) -> float:
    results = [await hybrid.run(f"Sum {number}", effort=effort) for number in range(130)]
    used = [result.calls[0].usage.reasoning_tokens for result in results[30:]]
    return sum(used) / len(used)


@pytest.mark.parametrize(("side", "can_limit"), [(Side.NEAR, True), (Side.FAR, False)])
async def test_half_the_effort_is_half_of_the_usual_reasoning(side: Side, can_limit: bool) -> None:
    thinker = _Thinker(side, can_limit=can_limit).agent
    near, far = (thinker, None) if side is Side.NEAR else (None, thinker)
    async with Hybrid(near=near, far=far, policy=Policy(sensitivity=Sensitivity.PUBLIC)) as hybrid:
        mean = await _mean_after_thirty(hybrid, 0.5)
    assert mean == pytest.approx(0.5 * 500 * math.exp(0.08), rel=0.15)
    limits = {request.max_reasoning_tokens for request in thinker.requests[_WATCHED:]}
    levels = {request.effort for request in thinker.requests}
    assert (len(limits) > 1, levels) == ((True, {None}) if can_limit else (False, {None, Effort.LOW}))


async def test_the_result_tells_how_far_an_effort_was_kept() -> None:
    thinker = _Thinker(Side.NEAR, can_limit=True).agent
    async with Hybrid(near=thinker) as hybrid:
        first = await hybrid.run("Sum", effort=0.5)
        last = [await hybrid.run("Sum", effort=0.5) for _ in range(_WATCHED)][-1]
    assert "effort 0.5: thinker reasoned as usual: it is not known yet how much that is" in first.reasons
    assert any("thinker reasoned for" in reason and "were meant" in reason for reason in last.reasons)


async def test_an_agent_that_reports_no_reasoning_is_said_to() -> None:
    async with Hybrid(near=ScriptedAgent(["Done."])) as hybrid:
        result = await hybrid.run("Sum", effort=1.5)
    assert "effort 1.5: scripted reports no reasoning" in result.reasons


@pytest.mark.parametrize("effort", ["0.5", "1.5"])
async def test_an_effort_may_be_given_as_text(effort: str) -> None:
    thinker = _Thinker(Side.NEAR, can_limit=True).agent
    async with Hybrid(near=thinker) as hybrid:
        result = await hybrid.run("Sum", effort=effort)
    assert any(reason.startswith(f"effort {effort}") for reason in result.reasons)


@pytest.mark.parametrize("effort", [0.05, 2.1, "0", float("nan")])
async def test_an_effort_out_of_range_is_refused(effort: float | str) -> None:
    async with Hybrid(near=ScriptedAgent(["Done."])) as hybrid:
        with pytest.raises(InvalidRequest, match="unknown value"):
            await hybrid.run("Sum", effort=effort)


async def test_the_log_keeps_what_is_usual_over_a_restart(tmp_path: Path) -> None:
    policy = Policy.model_validate({"router": {"log": tmp_path / "log.jsonl"}})
    async with Hybrid(near=_Thinker(Side.NEAR, can_limit=True).agent, policy=policy) as hybrid:
        for _ in range(_WATCHED):
            await hybrid.run("Sum")
    assert sum(isinstance(each, ReasonedStep) for each in read_outcomes(tmp_path / "log.jsonl")) == _WATCHED
    thinker = _Thinker(Side.NEAR, can_limit=True).agent
    async with Hybrid(near=thinker, policy=policy) as hybrid:
        await hybrid.run("Sum", effort=0.3)
    assert 64 <= (thinker.requests[0].max_reasoning_tokens or 0) < 300


@pytest.mark.parametrize("damage", ['"tokens":0', '"tokens":-5', f'"tokens":{10**400}', '"asked":{"tokens":NaN}', '"asked":{"most":0}'])
async def test_a_log_with_reasoning_that_cannot_be_is_a_configuration_error(damage: str, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    policy = Policy.model_validate({"router": {"log": log}})
    async with Hybrid(near=_Thinker(Side.NEAR, can_limit=True).agent, policy=policy) as hybrid:
        await hybrid.run("Sum")
    before, mark, after = log.read_text().partition('"reasoned":[{')
    log.write_text(f"{before}{mark}{re.sub(f'{damage.partition(chr(58))[0]}:[^,}}]*', damage, after, count=1)}")
    with pytest.raises(ConfigError, match="line 1 is no outcome"):
        read_outcomes(log)


async def test_a_step_that_was_limited_is_another_request() -> None:
    thinker = _Thinker(Side.NEAR, can_limit=True).agent
    async with Hybrid(near=thinker) as hybrid:
        for number in range(_WATCHED + 1):
            await hybrid.run("Sum", effort=0.3, idempotency_key=f"task-{number}")
    assert thinker.requests[-1].idempotency_key == f"task-{_WATCHED}/0/0/{thinker.requests[-1].max_reasoning_tokens}"


@pytest.mark.parametrize("target", [10.0, 80.0, 400.0])
def test_the_limit_brings_the_mean_to_its_target(target: float) -> None:
    known = LogNormal(math.log(400), 0.7)
    limit = known.limit(target)
    assert limit is not None
    drawn = random.Random(3)
    counts = [min(drawn.lognormvariate(known.mean, known.deviation), limit) for _ in range(20_000)]
    assert sum(counts) / len(counts) == pytest.approx(target, rel=0.02)
    assert known.limit(known.expected()) is None


def test_limited_steps_do_not_pass_for_short_ones() -> None:
    efforts, chance = Efforts(), random.Random(5)
    for _ in range(400):
        asked = efforts.ask(_KIND, 0.5, can_limit=True)
        tokens = round(chance.lognormvariate(math.log(500), 0.5))
        _learn(efforts, min(tokens, asked.most or tokens), asked)
    assert efforts.usual(_KIND).expected() == pytest.approx(500 * math.exp(0.125), rel=0.2)


def test_an_unseen_class_begins_with_what_its_agent_usually_takes() -> None:
    efforts = Efforts()
    for _ in range(30):
        _learn(efforts, 3000, AskedReasoning())
    other = StepKind("thinker", Side.NEAR, "execute", "maps", 100)
    assert efforts.usual(other).expected() == pytest.approx(3000, rel=0.1)
    assert efforts.usual(StepKind("stranger", Side.NEAR, "execute", "sums", 100)).expected() < 1000


def test_no_step_is_asked_to_reason_for_fewer_than_64_tokens() -> None:
    efforts = Efforts()
    for _ in range(_WATCHED):
        _learn(efforts, 90, AskedReasoning())
    assert efforts.ask(_KIND, 0.1, can_limit=True).most == 64


def _learn(efforts: Efforts, tokens: int, asked: AskedReasoning) -> None:
    efforts.learn(
        ReasonedStep(agent="thinker", side=Side.NEAR, role="execute", task_class="sums", prompt_tokens=100, tokens=tokens, asked=asked)
    )
