"""Tools past their time limit: the model is told that the outcome is unknown, and an equal call does not act beside the first one."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import anyio
import pytest
from ledgers import Run, made

from nearfar import Hybrid, Policy, Tool, effect_key, tool
from nearfar.orchestrator.task.sections.runs import RunsConfig
from nearfar.protocols import ScriptedAgent, Side, StepRequest, ToolCall, Unavailable

pytestmark = pytest.mark.anyio

PAY = ToolCall(id="1", name="pay", arguments={"to": "ann"})
PUBLIC = {"sensitivity": "public"}


class SlowBank:
    """Takes payments, and answers when it is let."""

    def __init__(self, *, effect: str = "at_most_once", problem: str = "") -> None:
        self.paid: list[str] = []
        self.may_answer = threading.Event()
        self._effect = effect
        self._problem = problem

    def pay(self, to: str) -> str:
        """Pay somebody."""
        self.paid.append(to)
        self.may_answer.wait(30)
        if self._problem:
            raise RuntimeError(self._problem)
        return f"{to} was paid"

    @property
    def tool(self) -> Tool:
        return tool(effect=self._effect, time_limit=0.1)(self.pay)


@contextmanager
def bank(**options: str) -> Iterator[SlowBank]:
    """A bank that in the end lets its threads go."""
    made = SlowBank(**options)
    try:
        yield made
    finally:
        made.may_answer.set()


def told(request: StepRequest) -> list[str]:
    """What the model was told of its calls, in its conversation."""
    return [message.tool_result.content for message in request.messages if message.tool_result is not None]


def runs_in(folder: Path, *, is_durable: bool) -> RunsConfig | None:
    return RunsConfig(folder=folder) if is_durable else None


@pytest.mark.parametrize("is_durable", [False, True])
@pytest.mark.parametrize("problem", ["", "the line broke"])
async def test_a_model_that_pays_again_waits_for_the_payment_under_way(tmp_path: Path, is_durable: bool, problem: str) -> None:
    heard: list[str] = []

    with bank(problem=problem) as slow:

        def reply(request: StepRequest) -> ToolCall | str:
            heard[:] = told(request)
            if heard and not heard[-1].startswith("outcome unknown: "):
                return heard[-1]
            if len(heard) > 1:
                slow.may_answer.set()
            return PAY

        async with Hybrid(near=ScriptedAgent(reply), tools=[slow.tool], runs=runs_in(tmp_path, is_durable=is_durable)) as hybrid:
            result = await hybrid.run("Pay Ann", policy=Policy(maximum_turns=400))
    assert slow.paid == ["ann"]
    assert "It is not known whether it took effect" in heard[0]
    assert "still runs" in heard[1]
    assert heard[-1].startswith(f"RuntimeError: {problem}" if problem else "ann was paid")
    assert "made earlier" in result.text
    assert result.tool_calls[0].outcome == "unknown"


@pytest.mark.parametrize("is_durable", [False, True])
async def test_a_short_limit_for_results_does_not_hide_that_the_outcome_is_unknown(tmp_path: Path, is_durable: bool) -> None:
    with bank() as slow:
        terse = tool(time_limit=0.1, result_limit=5)(slow.pay)
        near = ScriptedAgent([PAY, PAY, "I do not know."])
        async with Hybrid(near=near, tools=[terse], runs=runs_in(tmp_path, is_durable=is_durable)) as hybrid:
            result = await hybrid.run("Pay Ann")
    assert [made.outcome for made in result.tool_calls] == ["unknown", "unknown"]
    assert slow.paid == ["ann"]


@pytest.mark.parametrize("is_durable", [False, True])
async def test_an_agent_that_takes_over_does_not_pay_beside_the_one_before(tmp_path: Path, is_durable: bool) -> None:
    with bank() as slow:

        def reply(request: StepRequest) -> ToolCall | str:
            slow.may_answer.set()
            heard = told(request)
            return heard[-1] if heard and not heard[-1].startswith("outcome unknown: ") else PAY

        far = ScriptedAgent(reply, name="far", side=Side.FAR)
        near = ScriptedAgent([PAY, Unavailable("out of memory")])
        policy = Policy.model_validate({**PUBLIC, "strategy": "cascade", "maximum_turns": 400})
        async with Hybrid(near=near, far=far, tools=[slow.tool], policy=policy, runs=runs_in(tmp_path, is_durable=is_durable)) as hybrid:
            result = await hybrid.run("Pay Ann")
    assert slow.paid == ["ann"]
    assert "- outcome unknown: pay(" in far.requests[0].messages[-1].text
    assert result.text.startswith("ann was paid\n")


@pytest.mark.parametrize("is_cut_off", [False, True])
async def test_a_resumed_run_does_not_send_beside_the_call_that_still_runs(tmp_path: Path, is_cut_off: bool) -> None:
    loop, scope = asyncio.get_running_loop(), anyio.CancelScope()
    begun_until_it_answered: list[str] = []
    with bank(effect="idempotent") as slow:

        def pay(to: str) -> str:
            """Pay somebody."""
            if is_cut_off:
                loop.call_soon_threadsafe(scope.cancel)
            return slow.pay(to)

        def fails(request: StepRequest) -> ToolCall:
            if told(request):
                raise Unavailable("out of memory")
            return PAY

        def insists(request: StepRequest) -> ToolCall | str:
            heard = told(request)
            if len(heard) > 1 and not slow.may_answer.is_set():
                begun_until_it_answered.extend(slow.paid)
                slow.may_answer.set()
            return heard[-1] if heard and not heard[-1].startswith("outcome unknown: ") else PAY

        models = [fails, insists]
        near, late = ScriptedAgent(lambda request: models[0](request)), tool(effect="idempotent", time_limit=0.1)(pay)
        policy = Policy(maximum_turns=400)
        async with Hybrid(near=near, tools=[late], runs=RunsConfig(folder=tmp_path), policy=policy) as hybrid:
            with scope, suppress(Unavailable):
                await hybrid.run("Pay Ann", idempotency_key="lunch")
            del models[0]
            result = await hybrid.resume("lunch")
    assert begun_until_it_answered == ["ann"]
    assert result.text.startswith("ann was paid")


@pytest.mark.parametrize("is_durable", [False, True])
async def test_a_coroutine_that_was_stopped_in_the_middle_is_not_made_again(tmp_path: Path, is_durable: bool) -> None:
    paid: list[str] = []

    @tool(time_limit=0.05)
    async def pay(to: str) -> str:
        """Pay somebody."""
        paid.append(to)
        await anyio.sleep_forever()
        raise NotImplementedError

    near = ScriptedAgent([PAY, PAY, "Nobody knows."])
    async with Hybrid(near=near, tools=[pay], runs=runs_in(tmp_path, is_durable=is_durable)) as hybrid:
        result = await hybrid.run("Pay Ann")
    assert paid == ["ann"]
    assert "was stopped, perhaps after it had acted" in told(near.requests[1])[0]
    assert [made.outcome for made in result.tool_calls] == ["unknown", "unknown"]


@pytest.mark.parametrize(("effect", "words"), [("read", "its result is not waited for"), ("transactional", "its writes are dropped")])
async def test_where_nothing_can_have_happened_the_model_may_ask_again(effect: str, words: str) -> None:
    calls: list[str] = []
    may_end = threading.Event()

    @tool(effect=effect, time_limit=0.05)
    def look(to: str) -> str:
        """Look somebody up."""
        calls.append(to)
        if len(calls) == 1:
            may_end.wait(30)
        return "there"

    call = ToolCall(id="1", name="look", arguments={"to": "ann"})
    near = ScriptedAgent([call, call, "There."])
    try:
        async with Hybrid(near=near, tools=[look]) as hybrid:
            result = await hybrid.run("Where is Ann?")
    finally:
        may_end.set()
    assert words in told(near.requests[1])[0]
    assert [made.outcome for made in result.tool_calls] == ["failed", "done"]


async def test_a_payment_that_ends_late_is_on_record_for_whoever_goes_on(run: Run) -> None:
    with bank() as slow:
        async with run.owner() as ledger:
            first = await made(ledger, slow.tool, to="ann", turn=1)
            slow.may_answer.set()
            results = [first]
            while results[-1].content.startswith("outcome unknown: "):
                results.append(await made(ledger, slow.tool, to="ann", turn=2))
        async with run.owner() as ledger:
            again = await made(ledger, slow.tool, to="ann", turn=3)
    assert slow.paid == ["ann"]
    assert again.content.startswith("ann was paid")


async def test_an_idempotent_call_past_its_limit_is_tried_again_under_the_same_key() -> None:
    seen: list[str] = []

    @tool(effect="idempotent", time_limit=0.05)
    async def send(text: str) -> str:
        """Send a text."""
        seen.append(effect_key())
        if len(seen) == 1:
            await anyio.sleep_forever()
        return "sent"

    call = ToolCall(id="1", name="send", arguments={"text": "hi"})
    async with Hybrid(near=ScriptedAgent([call, call, call, "Sent."]), tools=[send]) as hybrid:
        await hybrid.run("Send hi, twice")
    keys = list(dict.fromkeys(seen))
    assert [keys.index(key) for key in seen] == [0, 0, 1]
