"""What a gateway lets its callers do: at which rate, and whose turn it is."""

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearfar.cloud.config import GatewayLimits
from nearfar.cloud.gateway import Admission, CallerRates, FairQueue, admissions
from nearfar.protocols import Message, RateLimited, StepRequest, Usage


class Clock:
    """Seconds that only pass when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def refused(rates: CallerRates, caller: str, tokens: int = 1) -> float:
    """Seconds after which the caller may come back; 0 where it was let in."""
    try:
        rates.take(caller, tokens)
    except RateLimited as error:
        return error.retry_after or -1.0
    return 0.0


def test_requests_beyond_the_rate_are_refused_until_it_has_made_up_for_them() -> None:
    clock = Clock()
    rates = CallerRates(GatewayLimits(requests_per_second=2), clock)
    assert [refused(rates, "laptop") for _ in range(3)] == [0, 0, 0.5]
    assert refused(rates, "phone") == 0
    clock.now += 0.5
    assert [refused(rates, "laptop") for _ in range(2)] == [0, 0.5]


def test_tokens_that_a_step_took_beyond_its_prompt_are_made_up_for() -> None:
    clock = Clock()
    rates = CallerRates(GatewayLimits(tokens_per_minute=600), clock)
    assert refused(rates, "laptop", 100) == 0
    rates.settle("laptop", 700)
    assert refused(rates, "laptop", 100) == pytest.approx(30)
    clock.now += 30
    assert refused(rates, "laptop", 100) == 0


def test_a_prompt_longer_than_a_minute_allows_waits_for_a_full_minute_and_leaves_a_debt() -> None:
    clock = Clock()
    rates = CallerRates(GatewayLimits(tokens_per_minute=600), clock)
    assert refused(rates, "laptop", 1200) == 0
    assert refused(rates, "laptop", 1200) == pytest.approx(120)


@given(st.lists(st.tuples(st.floats(0, 2), st.integers(1, 3)), max_size=60))
def test_no_caller_ever_begins_more_than_its_rate_allows(steps: list[tuple[float, int]]) -> None:
    clock = Clock()
    rates = CallerRates(GatewayLimits(requests_per_second=3), clock)
    begun = 0
    for pause, count in steps:
        clock.now += pause
        begun += sum(refused(rates, "laptop") == 0 for _ in range(count))
        assert begun <= 3 + 3 * clock.now + 1e-6


class Served:
    """Runs steps through a queue and notes in which order they began."""

    def __init__(self, slots: int, **limits: object) -> None:
        self.clock = Clock()
        self.queue = FairQueue(slots, GatewayLimits.model_validate(limits), self.clock)
        self.order: list[str] = []
        self.refused: list[float | None] = []
        self.gate = anyio.Event()
        self.running = self.most = 0

    async def step(self, caller: str, cost: float = 1.0) -> None:
        try:
            async with self.queue.turn(caller, cost):
                self.order.append(caller)
                self.running += 1
                self.most = max(self.most, self.running)
                await self.gate.wait()
                self.running -= 1
        except RateLimited as error:
            self.refused.append(error.retry_after)


@pytest.mark.anyio
async def test_a_caller_with_one_step_does_not_wait_behind_another_with_many() -> None:
    served = Served(1)
    async with anyio.create_task_group() as tasks:
        for caller in ["busy"] * 20 + ["quiet"]:
            tasks.start_soon(served.step, caller)
            await anyio.wait_all_tasks_blocked()
        served.gate.set()
    assert served.order.index("quiet") <= 2
    assert len(served.order) == 21


@pytest.mark.anyio
async def test_callers_get_equal_shares_of_the_work_and_not_of_the_steps() -> None:
    served = Served(1)
    async with anyio.create_task_group() as tasks:
        for caller, cost in [("long", 10.0)] * 10 + [("short", 1.0)] * 40:
            tasks.start_soon(served.step, caller, cost)
            await anyio.wait_all_tasks_blocked()
        served.gate.set()
    begun = served.order[:22]
    assert begun.count("short") == pytest.approx(10 * begun.count("long"), abs=10)


@pytest.mark.anyio
@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0.1, 9)), min_size=1, max_size=30), st.integers(1, 4))
async def test_every_step_gets_its_turn_and_never_more_than_there_are(steps: list[tuple[str, float]], slots: int) -> None:
    served = Served(slots, concurrent=2)
    async with anyio.create_task_group() as tasks:
        for caller, cost in steps:
            tasks.start_soon(served.step, caller, cost)
        served.gate.set()
    assert sorted(served.order) == sorted(caller for caller, _ in steps)
    assert served.most <= slots


@pytest.mark.anyio
async def test_one_caller_has_no_more_steps_at_the_same_time_than_it_may() -> None:
    served = Served(4, concurrent=1)
    async with anyio.create_task_group() as tasks:
        for caller in ("busy", "busy", "quiet"):
            tasks.start_soon(served.step, caller)
            await anyio.wait_all_tasks_blocked()
        assert served.order == ["busy", "quiet"]
        served.gate.set()
    assert served.order == ["busy", "quiet", "busy"]


@pytest.mark.anyio
async def test_a_full_queue_refuses_and_says_when_to_come_back() -> None:
    served = Served(1, waiting=2)
    async with anyio.create_task_group() as tasks:
        for caller in ["busy"] * 4 + ["quiet"]:
            tasks.start_soon(served.step, caller)
            await anyio.wait_all_tasks_blocked()
        assert len(served.refused) == 1
        assert served.refused[0] is not None
        assert served.refused[0] >= 1
        served.gate.set()
    assert sorted(served.order) == ["busy", "busy", "busy", "quiet"]


@pytest.mark.anyio
async def test_a_step_whose_turn_does_not_come_is_refused_and_leaves_the_queue() -> None:
    served = Served(1, longest_wait=0.01)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(served.step, "busy")
        await anyio.wait_all_tasks_blocked()
        await served.step("late")
        assert served.refused == [1.0]
        served.gate.set()
    await served.step("again")
    assert served.order == ["busy", "again"]


@pytest.mark.anyio
async def test_who_leaves_while_waiting_leaves_its_turn_to_the_next() -> None:
    served = Served(1)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(served.step, "first")
        await anyio.wait_all_tasks_blocked()
        async with anyio.create_task_group() as leaving:
            leaving.start_soon(served.step, "leaver")
            await anyio.wait_all_tasks_blocked()
            leaving.cancel_scope.cancel()
        tasks.start_soon(served.step, "next")
        served.gate.set()
    assert served.order == ["first", "next"]


@pytest.mark.anyio
async def test_what_was_refused_counts_for_nothing() -> None:
    clock = Clock()
    limits = GatewayLimits(tokens_per_minute=900, waiting=0)
    admission = admissions(limits, {"far": 1}, monotonic=clock)["far"]
    request = StepRequest(messages=(Message.user("x" * 1200),))
    async with admission.turn("laptop", request) as turn:
        with pytest.raises(RateLimited, match="busy"):
            await _enter(admission, request)
        turn.usage = Usage(input_tokens=300, output_tokens=0)
    async with admission.turn("laptop", request):
        pass  # 600 of the 900 tokens were left


async def _enter(admission: Admission, request: StepRequest) -> None:
    async with admission.turn("laptop", request):
        raise NotImplementedError
