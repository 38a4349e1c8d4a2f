"""Tasks that are runs: found again, joined, gone on with, cancelled."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from attached import PIXEL
from run_stores import Opener

from nearfar import Hybrid, Mode, Policy, Records, Strategy, Tool, tool
from nearfar.orchestrator.hybrid.arguments import TaskOptions
from nearfar.orchestrator.runs import Bounds, KeptTask, Lease, RunFailure, RunState
from nearfar.orchestrator.runs import leases as cancelling
from nearfar.orchestrator.runs.store import RunStore
from nearfar.orchestrator.strategies.durable import DurableRuns
from nearfar.orchestrator.strategies.state import TaskContext
from nearfar.orchestrator.task import Task
from nearfar.orchestrator.task.events import TaskFinished
from nearfar.orchestrator.task.routing_policy import AmountsConfig, LimitsConfig
from nearfar.orchestrator.task.stores import RunsConfig
from nearfar.protocols import (
    ApprovalNeeded,
    ApprovalRequest,
    Attachment,
    BudgetExceeded,
    Cancelled,
    Capabilities,
    ConfigError,
    DeadlineExceeded,
    IdempotencyConflict,
    InvalidRequest,
    Message,
    NotFound,
    PermissionDenied,
    RunBusy,
    ScriptedAgent,
    Sensitivity,
    Side,
    StepRequest,
    StoreUnavailable,
    ToolCall,
    Unavailable,
)
from nearfar.protocols.fakes import Reply, Script

pytestmark = pytest.mark.anyio

LOOK = ToolCall(id="1", name="look", arguments={})


@tool(effect="at_most_once")
def look() -> str:
    """Look something up."""
    return "found"


@pytest.fixture
def config(tmp_path: Path) -> RunsConfig:
    return RunsConfig(folder=tmp_path / "runs")


@asynccontextmanager
async def hybrid(config: RunsConfig | RunStore, script: Script, *tools: Tool, **more: ScriptedAgent) -> AsyncIterator[Hybrid]:
    near, policy = ScriptedAgent(script, name="near"), Policy(strategy=Strategy.DEVICE)
    records = Records(runs=config) if isinstance(config, RunStore) else config
    async with Hybrid(near=near, agents=more, tools=tools, records=records, policy=policy) as opened:
        yield opened


def unasked(request: StepRequest) -> Reply:
    raise AssertionError(f"nobody is to be asked: {request}")


async def test_who_asks_for_the_same_again_gets_what_came_of_it(config: RunsConfig) -> None:
    async with hybrid(config, ["Hello."]) as first:
        result = await first.run("Hi", idempotency_key="k")
    async with hybrid(config, unasked) as second:
        assert await second.run("Hi", idempotency_key="k") == result
        assert await second.resume("k") == result
        events = [event async for event in second.stream("Hi", idempotency_key="k")]
    assert events == [TaskFinished(result=result)]


async def test_a_key_that_was_another_tasks_is_refused(config: RunsConfig) -> None:
    async with hybrid(config, ["Hello."]) as opened:
        await opened.run("Hi", idempotency_key="k")
        with pytest.raises(IdempotencyConflict):
            await opened.run("Something else", idempotency_key="k")
        with pytest.raises(IdempotencyConflict):
            await opened.run("Hi", idempotency_key="k", user="ann")


@pytest.mark.parametrize("tighter", [{"sensitivity": "private"}, {"mode": "only_on_device"}, {"allowed_tools": ["other"]}])
async def test_a_run_is_not_gone_on_with_under_looser_bounds_than_it_is_asked_for(config: RunsConfig, tighter: TaskOptions) -> None:
    asked: TaskOptions = {**tighter, "idempotency_key": "k"}
    far = ScriptedAgent([Unavailable("gone"), "Hello."], name="far", side=Side.FAR)
    async with Hybrid(far=far, tools=[look], records=config, policy=Policy(sensitivity=Sensitivity.PUBLIC)) as opened:
        with pytest.raises(Unavailable):
            await opened.run("Hi", idempotency_key="k")
        with pytest.raises(IdempotencyConflict, match=next(iter(tighter))):
            await opened.run("Hi", **asked)
        assert len(far.requests) == 1
        result = await opened.run("Hi", idempotency_key="k")
        assert await opened.run("Hi", **asked) == result, "it is done, and nobody is told anything"


ASKED_PUBLICLY: TaskOptions = {"sensitivity": Sensitivity.PUBLIC, "mode": Mode.AUTO}
KEPT_HERE = {"rules": [{"name": "secrets", "when": {"task_class": ("secret",)}, "mode": "only_on_device"}]}


@pytest.mark.parametrize(
    ("now", "told"),
    [
        ({"sensitivity": "private"}, "sensitivity"),
        ({"sensitivity": "public", "mode": "only_on_device"}, "mode"),
        ({"sensitivity": "public", **KEPT_HERE}, "sensitivity and mode"),
    ],
)
async def test_a_run_is_not_resumed_publicly_under_a_policy_that_has_become_tighter(
    config: RunsConfig, now: dict[str, object], told: str
) -> None:
    far = ScriptedAgent([Unavailable("gone"), "Hello."], name="far", side=Side.FAR)
    before = Policy(sensitivity=Sensitivity.PUBLIC)
    async with Hybrid(far=far, records=config, policy=before) as opened:
        with pytest.raises(Unavailable):
            await opened.run("Hi", idempotency_key="k", task_class="secret")
    async with Hybrid(far=far, near=ScriptedAgent(unasked, name="near"), records=config, policy=Policy.model_validate(now)) as opened:
        with pytest.raises(IdempotencyConflict, match=told):
            await opened.resume("k")
    assert len(far.requests) == 1
    async with Hybrid(far=far, near=ScriptedAgent(unasked, name="near"), records=config, policy=before) as opened:
        assert (await opened.resume("k")).text == "Hello."


async def test_a_run_that_let_findings_leave_is_not_resumed_under_the_preset_private(config: RunsConfig) -> None:
    far = ScriptedAgent([Unavailable("gone"), "Written."], name="far", side=Side.FAR)
    loose = Policy.model_validate({"privacy": {"findings": "allow"}})
    async with Hybrid(far=far, records=config, policy=loose) as opened:
        with pytest.raises(Unavailable):
            await opened.run("Write to bob@example.com", **(ASKED_PUBLICLY | {"idempotency_key": "k"}))
    async with Hybrid(far=far, records=config, policy=Policy.model_validate({"preset": "private"})) as opened:
        with pytest.raises(IdempotencyConflict, match="privacy"):
            await opened.resume("k")
    assert len(far.requests) == 1
    async with Hybrid(far=far, records=config, policy=loose) as opened:
        assert (await opened.resume("k")).text == "Written."


@pytest.mark.parametrize(
    ("before", "now", "told"),
    [
        ({"privacy": {"detect": ["email"]}}, {"privacy": {"detect": ["email", "card"]}}, "privacy"),
        ({"privacy": {"placeholders": True}}, {}, "privacy"),
        ({"guard": {"tools": "allow"}}, {}, "guard"),
        ({"guard": {"arguments": "ask"}}, {"guard": {"arguments": "refuse"}}, "guard"),
    ],
)
async def test_a_run_is_not_resumed_under_more_detectors_or_a_stricter_guard(
    config: RunsConfig, before: dict[str, object], now: dict[str, object], told: str
) -> None:
    far = ScriptedAgent([Unavailable("gone"), "Hello."], name="far", side=Side.FAR)
    loose = Policy.model_validate(before)
    async with Hybrid(far=far, records=config, policy=loose) as opened:
        with pytest.raises(Unavailable):
            await opened.run("Hi", **(ASKED_PUBLICLY | {"idempotency_key": "k"}))
    async with Hybrid(far=far, records=config, policy=Policy.model_validate(now)) as opened:
        with pytest.raises(IdempotencyConflict, match=told):
            await opened.resume("k")
    async with Hybrid(far=far, records=config, policy=loose) as opened:
        assert (await opened.resume("k")).text == "Hello."


async def test_a_rule_about_public_tasks_holds_for_a_run_that_was_public_by_its_own_word(config: RunsConfig) -> None:
    far = ScriptedAgent([Unavailable("gone")], name="far", side=Side.FAR)
    async with Hybrid(far=far, records=config) as opened:
        with pytest.raises(Unavailable):
            await opened.run("Hi", **(ASKED_PUBLICLY | {"idempotency_key": "k"}))
    rule = {"name": "nothing leaves now", "when": {"sensitivity": "public"}, "mode": "only_on_device"}
    async with Hybrid(far=far, records=config, policy=Policy.model_validate({"rules": [rule]})) as opened:
        with pytest.raises(IdempotencyConflict, match="mode"):
            await opened.resume("k")
    assert len(far.requests) == 1


async def test_a_run_that_was_public_by_its_own_word_is_resumed_under_the_same_policy(config: RunsConfig) -> None:
    far = ScriptedAgent([Unavailable("gone"), "Hello."], name="far", side=Side.FAR)
    private = Policy(sensitivity=Sensitivity.PRIVATE)
    async with Hybrid(far=far, records=config, policy=private) as opened:
        with pytest.raises(Unavailable):
            await opened.run("Hi", **(ASKED_PUBLICLY | {"idempotency_key": "k"}))
        assert (await opened.resume("k")).text == "Hello."


async def test_a_rule_that_denies_a_task_now_denies_its_resumption(config: RunsConfig) -> None:
    far = ScriptedAgent([Unavailable("gone"), "Hello."], name="far", side=Side.FAR)
    rule = {"name": "none", "when": {"task_class": ("secret",)}, "deny": "none of this"}
    denying = Policy.model_validate({"sensitivity": "public", "rules": [rule]})
    async with Hybrid(far=far, records=config, policy=Policy(sensitivity=Sensitivity.PUBLIC)) as opened:
        with pytest.raises(Unavailable):
            await opened.run("Hi", idempotency_key="k", task_class="secret")
    async with Hybrid(far=far, records=config, policy=denying) as opened:
        with pytest.raises(PermissionDenied, match="none"):
            await opened.resume("k")
    assert len(far.requests) == 1


async def test_a_limit_for_all_tasks_that_was_lowered_meanwhile_holds_for_runs_that_go_on(config: RunsConfig) -> None:
    async with hybrid(config, [Unavailable("gone")]) as first:
        with pytest.raises(Unavailable):
            await first.run("Hi", idempotency_key="k")
    nothing = Policy(strategy=Strategy.DEVICE, limits=LimitsConfig(day=AmountsConfig(tokens=1)))
    async with Hybrid(near=ScriptedAgent(unasked, name="near"), records=config, policy=nothing) as second:
        with pytest.raises(BudgetExceeded):
            await second.resume("k")


async def test_who_asks_for_what_is_under_way_joins_it(config: RunsConfig) -> None:
    begun, may_end = anyio.Event(), anyio.Event()

    @tool
    async def wait() -> str:
        """Wait."""
        begun.set()
        await may_end.wait()
        return "waited"

    texts = []
    async with hybrid(config, [[ToolCall(id="1", name="wait", arguments={})], "Hello."], wait) as opened, anyio.create_task_group() as both:

        async def ask() -> None:
            texts.append((await opened.run("Hi", idempotency_key="k")).text)

        both.start_soon(ask)
        await begun.wait()
        both.start_soon(ask)
        with pytest.raises(DeadlineExceeded, match="goes on"):
            await opened.run("Hi", idempotency_key="k", timeout=0.1)
        async with hybrid(config, unasked, wait) as other:
            with pytest.raises(RunBusy, match="process"):
                await other.resume("k")
        may_end.set()
    assert texts == ["Hello.", "Hello."]


async def test_a_run_that_failed_goes_on_from_the_last_step_that_went_well(config: RunsConfig) -> None:
    def fails_behind_a_tool(request: StepRequest) -> Reply:
        if request.messages[-1].role == "tool":
            raise Unavailable("gone")
        return [LOOK]

    async with hybrid(config, fails_behind_a_tool, look) as first:
        with pytest.raises(Unavailable):
            await first.run("Hi", idempotency_key="k")
        assert first.runs.show("k").state is RunState.FAILED
    async with hybrid(config, ["It was found."], look) as second:
        result = await second.resume("k")
    assert result.text == "It was found."
    assert [call.role for call in result.calls if call.error is None] == ["execute", "execute"]


async def test_a_run_that_is_interrupted_is_left_for_others(config: RunsConfig) -> None:
    interrupting = anyio.CancelScope()

    @tool
    async def hang() -> str:
        """Never come back."""
        interrupting.cancel()
        await anyio.sleep_forever()
        raise AssertionError

    async with hybrid(config, [[ToolCall(id="1", name="hang", arguments={})]] * 2, hang) as first:
        with interrupting:
            await first.run("Hi", idempotency_key="k")
        assert first.runs.show("k").is_orphaned
        with pytest.raises(DeadlineExceeded):
            await first.run("Hi", idempotency_key="late", timeout=2)
        assert first.runs.show("late").state is RunState.FAILED


async def test_a_run_is_cancelled_from_elsewhere_behind_the_step_under_way(config: RunsConfig) -> None:
    elsewhere = RunStore.open(config)

    def cancelled_meanwhile(request: StepRequest) -> Reply:
        elsewhere.cancel("k")
        return [LOOK]

    async with hybrid(config, cancelled_meanwhile, look) as opened:
        with pytest.raises(Cancelled):
            await opened.run("Hi", idempotency_key="k")
        assert elsewhere.show("k").state is RunState.CANCELLED
        with pytest.raises(Cancelled):
            await opened.resume("k")
        await opened.cancel("k")  # it has ended; nothing changes
    elsewhere.close()


async def test_a_run_is_cancelled_in_the_middle_of_what_an_agent_says(config: RunsConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cancelling, "LOOK_SECONDS", 0.01)
    never = anyio.Event()

    def hanging(request: StepRequest) -> Reply:
        elsewhere.cancel("k")
        return ["Well", never]

    elsewhere = RunStore.open(config)
    async with hybrid(config, hanging) as opened:
        with pytest.raises(Cancelled):
            await opened.run("Hi", idempotency_key="k", timeout=20)
        assert opened.runs.show("k").state is RunState.CANCELLED
        assert (await opened.pool["near"].open()).card.name == "near"
        with pytest.raises(Cancelled):
            async for _ in opened.stream("Hi", idempotency_key="k", timeout=20):
                pass
    elsewhere.close()


async def test_a_run_is_not_cancelled_in_the_middle_of_a_tool(config: RunsConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cancelling, "LOOK_SECONDS", 0.01)
    looked: list[set[str]] = []

    class Watched(RunStore):
        def to_be_cancelled(self) -> set[str]:
            looked.append(super().to_be_cancelled())
            return looked[-1]

    @tool(effect="at_most_once")
    async def pay() -> str:
        """Pay."""
        elsewhere.cancel("k")
        while sum(map(bool, looked)) < 3:
            await anyio.lowlevel.checkpoint()
        return "paid"

    store, elsewhere = Watched.open(config), RunStore.open(config)
    async with hybrid(store, [ToolCall(id="1", name="pay", arguments={})], pay) as opened:
        with pytest.raises(Cancelled):
            await opened.run("Hi", idempotency_key="k", timeout=20)
    with store.database.reading() as session:
        assert session.execute("SELECT state FROM effects WHERE run = 'k'").fetchall() == [("done",)]
    for each in (store, elsewhere):
        each.close()


async def test_what_a_run_lacks_is_named(config: RunsConfig) -> None:
    async with hybrid(config, [[LOOK], Unavailable("gone")], look, second=ScriptedAgent([Unavailable("gone")] * 2, name="second")) as first:
        with pytest.raises(Unavailable):
            await first.run("Hi", idempotency_key="k")
    async with hybrid(config, unasked) as second:
        with pytest.raises(ConfigError, match="tool 'look', agent 'second'"):
            await second.resume("k")
        assert second.runs.show("k").epoch == 1  # nobody has touched it
        with pytest.raises(ConfigError, match="agent 'second'"):
            await second.resume("k", tools=[look])


async def test_what_a_run_goes_on_with_is_looked_up_when_nobody_else_can_change_it_any_more(config: RunsConfig) -> None:
    async with hybrid(config, [[LOOK], Unavailable("gone")], look) as first:
        with pytest.raises(Unavailable):
            await first.run("Hi", idempotency_key="k")
    runs = DurableRuns(RunStore.open(config), ("near",), lambda *_: Bounds(sensitivity=Sensitivity.PRIVATE, mode=Mode.AUTO))
    owners: list[str | None] = []

    def equip(task: Task) -> TaskContext:
        owners.append(runs.store.show("k").owner)
        return TaskContext.of([look])

    async with runs.resume("k", "", equip):
        assert owners[-1] == runs.store.owners.name
    runs.store.close()


async def test_who_is_about_to_go_on_with_a_run_that_another_process_ends_gets_its_result(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hybrid(opened(), [Unavailable("gone")]) as first:
        with pytest.raises(Unavailable):
            await first.run("Hi", idempotency_key="k")
    store, elsewhere, results = opened(), opened(), []
    claim = store.claim

    async def claim_later(run: str, *, user: str = "") -> Lease:
        """End the run elsewhere, after it was seen and before it is claimed."""
        async with hybrid(elsewhere, ["Hello."]) as other:
            results.append(await other.resume(run))
        return await claim(run, user=user)

    monkeypatch.setattr(store, "claim", claim_later)
    async with hybrid(store, unasked) as second:
        assert [await second.resume("k")] == results


async def test_an_unknown_run_and_another_users_are_not_found(config: RunsConfig) -> None:
    async with hybrid(config, ["Hello."]) as opened:
        await opened.run("Hi", idempotency_key="k", user="ann")
        for key in ("k", "unknown"):
            with pytest.raises(NotFound):
                await opened.resume(key)
            with pytest.raises(NotFound):
                await opened.cancel(key)
        assert (await opened.resume("k", user="ann")).text == "Hello."


async def test_a_run_waits_for_a_yes_across_processes(config: RunsConfig) -> None:
    sent = []

    @tool(approval=True)
    def send() -> str:
        """Send it."""
        sent.append(1)
        return "sent"

    async with hybrid(config, [[ToolCall(id="1", name="send", arguments={})]], send) as first:
        with pytest.raises(ApprovalNeeded) as needed:
            await first.run("Send it", idempotency_key="k")
        assert first.runs.show("k").state is RunState.WAITING
    async with hybrid(config, ["It is sent."], send) as second:
        with pytest.raises(NotFound):
            await second.resume("k", approvals={"unknown": True})
        [request] = needed.value.requests
        assert isinstance(request, ApprovalRequest)
        result = await second.resume("k", approvals={request.id: True})
    assert (result.text, sent) == ("It is sent.", [1])


async def test_a_run_with_an_image_shows_it_again_when_it_is_resumed(config: RunsConfig) -> None:
    image = Attachment.of(PIXEL.data + bytes(100_000))
    sees = Capabilities(images=True, tools=True)

    @tool(approval=True)
    def send() -> str:
        """Send it."""
        return "sent"

    asks = ScriptedAgent([LOOK, ToolCall(id="2", name="send")], capabilities=sees)
    async with Hybrid(near=asks, tools=[look, send], records=config) as first:
        with pytest.raises(ApprovalNeeded) as needed:
            await first.run([Message.user("Send this", (image,))], idempotency_key="k")
    near = ScriptedAgent(["It is sent."], capabilities=sees)
    async with Hybrid(near=near, tools=[look, send], records=config) as second:
        result = await second.resume("k", approvals={request.id: True for request in needed.value.requests})
    assert result.text == "It is sent."
    assert near.requests[0].messages[0].attachments == (image,)


class NoRoomAtTheEnd(RunStore):
    """Cannot keep any result."""

    async def finish(self, lease: Lease, outcome: str | RunFailure, *, task: KeptTask | None = None) -> None:
        raise StoreUnavailable("the disk is full")


async def test_a_run_whose_result_was_lost_at_the_last_moment_asks_nobody_again(config: RunsConfig) -> None:
    store = NoRoomAtTheEnd.open(config)
    async with hybrid(store, ["Hello."]) as first:
        with pytest.raises(StoreUnavailable):
            await first.run("Hi", idempotency_key="k")
    store.close()
    async with hybrid(config, unasked) as second:
        result = await second.resume("k")
    assert (result.text, len(result.calls)) == ("Hello.", 1)


async def test_old_runs_are_forgotten_by_programs_that_serve_one_task(tmp_path: Path) -> None:
    config = RunsConfig(folder=tmp_path / "runs", keep=2)
    for number in range(4):
        async with hybrid(config, ["Hello."]) as opened:
            await opened.run("Hi", idempotency_key=f"run {number}")
    store = RunStore.open(config)
    assert [run.id for run in store.list()] == ["run 3", "run 2"]
    store.close()


async def test_without_runs_there_is_nothing_to_resume() -> None:
    async with Hybrid(near=ScriptedAgent(["Hello."])) as opened:
        with pytest.raises(ConfigError, match="no runs"):
            await opened.resume("k")


async def test_a_run_has_no_other_thread(config: RunsConfig) -> None:
    async with hybrid(config, ["Hello."]) as opened:
        with pytest.raises(InvalidRequest):
            await opened.run("Hi", thread_id="other")


async def test_a_store_may_be_shared_and_stays_open(config: RunsConfig) -> None:
    store = RunStore.open(config)
    async with hybrid(store, ["Hello."]) as opened:
        await opened.run("Hi", idempotency_key="k")
    assert [run.id for run in store.list()] == ["k"]
    store.close()


async def test_orchestrators_that_share_a_database_go_on_with_each_others_runs(opened: Opener) -> None:
    sent = []

    @tool(approval=True)
    def send() -> str:
        """Send it."""
        sent.append(1)
        return "sent"

    calls = [ToolCall(id="1", name="look", arguments={}), ToolCall(id="2", name="send", arguments={})]
    async with hybrid(opened(), [calls], look, send) as first:
        with pytest.raises(ApprovalNeeded) as needed:
            await first.run("Send it", idempotency_key="k")
    [request] = needed.value.requests
    assert isinstance(request, ApprovalRequest)
    async with hybrid(opened(), ["It is sent."], look, send) as second:
        result = await second.resume("k", approvals={request.id: True})
        assert await second.run("Send it", idempotency_key="k") == result
        second.runs.forget("k")
        with pytest.raises(NotFound):
            await second.resume("k")
    assert (result.text, sent) == ("It is sent.", [1])


async def test_many_runs_at_once_are_all_kept(opened: Opener) -> None:
    def script(request: StepRequest) -> Reply:
        return "found it" if request.messages[-1].role == "tool" else [LOOK]

    texts = []
    async with hybrid(opened(), script, look) as first, anyio.create_task_group() as asking:

        async def ask(number: int) -> None:
            texts.append((await first.run("Look", idempotency_key=f"run {number}")).text)

        for number in range(30):
            asking.start_soon(ask, number)
    assert texts == ["found it"] * 30
    assert {run.state for run in opened().list()} == {RunState.DONE}
