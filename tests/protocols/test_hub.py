"""Workers that dial out: who they are, what they get, how they leave and come back."""

import asyncio
import ssl
from collections.abc import AsyncGenerator
from pathlib import Path

import anyio
import pytest
from attached_world import OWN, QUICK, TOKENS, ask, hub_with, running

from nearfar.protocols import (
    Agent,
    AgentCard,
    ConfigError,
    DeadlineExceeded,
    DeviceState,
    InvalidOutput,
    InvalidRequest,
    NotFound,
    PowerSource,
    PrivacyViolation,
    ScriptedAgent,
    Sensitivity,
    Side,
    StepEvent,
    StepRequest,
    TextDelta,
    Thermal,
    ToolCall,
    ToolSpec,
    Unauthenticated,
    Unavailable,
    Unsupported,
    complete,
    stream,
)
from nearfar.protocols.address import fingerprint_of
from nearfar.protocols.attach import Worker
from nearfar.protocols.client import RemoteAgent
from nearfar.protocols.fakes import Reply
from nearfar.protocols.hub import Heartbeat, Hub, WorkerTerms, serve_hub
from nearfar.protocols.limits import MAX_MESSAGE_BYTES
from nearfar.protocols.server import serve
from nearfar.protocols.testing import chaos_proxy, eventually
from nearfar.protocols.tls import ClientTls, ServerTls

pytestmark = pytest.mark.anyio

PAGE = {"type": "object", "properties": {"page": {"type": "string"}}}


def endless(gate: anyio.Event | None = None) -> ScriptedAgent:
    """Says one word, then waits for `gate`, which may never open."""
    return ScriptedAgent(lambda _: ["first ", gate or anyio.Event(), "second"])


async def outcome(agent: Agent, request: StepRequest, results: list[object], started: anyio.Event) -> None:
    """Run a step and keep its text or its error."""
    text = ""
    try:
        async with stream(agent, request) as events:
            async for event in events:
                text += event.text if isinstance(event, TextDelta) else ""
                started.set()
        results.append(text)
    except (Unavailable, DeadlineExceeded) as error:
        results.append(error)


async def test_worker_is_known_by_its_token_and_not_by_what_it_says() -> None:
    async with hub_with(ScriptedAgent(["hello"], name="tablet")) as (hub, _):
        assert list(hub.attached) == ["phone"]
        agent = hub.agent("phone")
        assert agent.card.name == "phone"
        assert (await complete(agent, ask())).text == "hello"


async def test_attached_agent_is_far_unless_the_hub_says_that_the_device_is_the_users_own() -> None:
    hub, agent = Hub(TOKENS, heartbeat=QUICK), ScriptedAgent(["public"], side=Side.NEAR)
    with anyio.fail_after(20):
        async with serve_hub(hub) as address, running(agent, address):
            lent = await hub.wait_for("phone")
            assert lent.card.side is Side.FAR
            with pytest.raises(PrivacyViolation):
                await complete(lent, ask(sensitivity=Sensitivity.PRIVATE))
            assert agent.requests == []
            assert (await complete(lent, ask(sensitivity=Sensitivity.PUBLIC))).text == "public"


async def test_far_agent_on_the_users_own_device_stays_far() -> None:
    async with hub_with(ScriptedAgent(["x"], side=Side.FAR)) as (hub, _):
        assert hub.agent("phone").card.side is Side.FAR


async def test_worker_refuses_private_text_for_its_far_agent_itself() -> None:
    class Careless(ScriptedAgent):
        """Claims to be near where the hub looks and is far where it counts."""

        reads = 0

        @property
        def card(self) -> AgentCard:
            self.reads += 1
            return super().card.model_copy(update={"side": Side.NEAR if self.reads <= 2 else Side.FAR})

    agent = Careless(["secret"])
    async with hub_with(agent) as (hub, _):
        with pytest.raises(PrivacyViolation):
            await complete(hub.agent("phone"), ask())
        assert agent.requests == []


async def test_worker_that_is_not_attached_is_unavailable_at_once() -> None:
    hub = Hub(TOKENS)
    with pytest.raises(Unavailable):
        await complete(hub.agent("phone"), ask())
    with pytest.raises(Unavailable):
        _ = hub.agent("phone").card
    with pytest.raises(NotFound):
        hub.agent("laptop")


async def test_hub_without_tokens_is_refused() -> None:
    with pytest.raises(ConfigError):
        Hub({})


@pytest.mark.parametrize("address", ["0.0.0.0:0", "192.0.2.1:7445"])
async def test_hub_off_loopback_without_tls_is_refused(address: str) -> None:
    with pytest.raises(ConfigError):
        async with serve_hub(Hub(TOKENS), address):
            raise NotImplementedError


async def test_worker_attaches_over_tls(certificate: tuple[Path, Path]) -> None:
    hub = Hub(TOKENS, policies=OWN)
    tls = ServerTls(certificate=certificate[0], private_key=certificate[1])
    async with serve_hub(hub, tls=tls) as address, running(ScriptedAgent(["hello"]), address, tls=ClientTls(roots=certificate[0])):
        assert (await complete(await hub.wait_for("phone"), ask())).text == "hello"


async def test_worker_that_is_paired_trusts_the_hubs_certificate_and_no_other(
    certificate: tuple[Path, Path], other_certificate: tuple[Path, Path]
) -> None:
    tls = ServerTls(certificate=certificate[0], private_key=certificate[1])
    right, wrong = (fingerprint_of(ssl.PEM_cert_to_DER_cert(pem.read_text())) for pem in (certificate[0], other_certificate[0]))
    hub, agent = Hub(TOKENS, policies=OWN), ScriptedAgent(["hello"])
    with anyio.fail_after(30):
        async with serve_hub(hub, tls=tls) as address:
            with pytest.raises(ConfigError):
                await Worker(agent, address, token=TOKENS["phone"], fingerprint=wrong).run()
            worker = Worker(agent, address, token=TOKENS["phone"], fingerprint=right)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(worker.run)
                assert (await complete(await hub.wait_for("phone"), ask())).text == "hello"
                await worker.drain(1)


async def test_worker_with_a_wrong_token_gives_up_with_a_clear_error() -> None:
    async with serve_hub(Hub(TOKENS)) as address:
        with pytest.raises(Unauthenticated), anyio.fail_after(20):
            await Worker(ScriptedAgent(["x"]), address, token="a wrong token").run()


async def test_revoked_worker_loses_its_steps_and_does_not_come_back() -> None:
    agent, results, started = endless(), list[object](), anyio.Event()
    hub = Hub(TOKENS, policies=OWN, heartbeat=QUICK)
    with anyio.fail_after(20):
        async with serve_hub(hub) as address, running(agent, address) as state, anyio.create_task_group() as tasks:
            tasks.start_soon(outcome, await hub.wait_for("phone"), ask(), results, started)
            await started.wait()
            hub.revoke("phone")
            await state.done.wait()
    assert isinstance(state.error, Unauthenticated)
    assert isinstance(results[0], Unavailable)
    assert agent.live_steps == 0


async def test_worker_whose_token_was_replaced_is_shut_out_and_the_others_stay() -> None:
    hub = Hub(TOKENS, heartbeat=QUICK)
    async with (
        serve_hub(hub) as address,
        running(ScriptedAgent(["x"]), address) as phone,
        running(ScriptedAgent(["x"]), address, token=TOKENS["tablet"]),
    ):
        await hub.wait_for("phone")
        await hub.wait_for("tablet")
        hub.replace_tokens({**TOKENS, "phone": "a new token of the phone", "laptop": "the token of a new laptop"})
        with anyio.fail_after(20):
            await phone.done.wait()
        assert isinstance(phone.error, Unauthenticated)
        assert list(hub.attached) == ["tablet"]
        async with running(ScriptedAgent(["x"]), address, token="the token of a new laptop"):
            await hub.wait_for("laptop")


async def test_revoking_the_last_worker_opens_the_hub_to_nobody() -> None:
    hub = Hub({"phone": TOKENS["phone"]})
    hub.revoke("phone")
    async with serve_hub(hub) as address:
        with pytest.raises(Unauthenticated), anyio.fail_after(20):
            await Worker(ScriptedAgent(["x"]), address, token=TOKENS["phone"]).run()


async def test_second_worker_with_the_same_token_is_refused_while_the_first_is_alive() -> None:
    async with hub_with(ScriptedAgent(["still", "here"])) as (hub, address):
        with anyio.fail_after(30), pytest.raises(ConfigError):
            await Worker(ScriptedAgent(["intruder"]), address, token=TOKENS["phone"]).run()
        assert (await complete(hub.agent("phone"), ask())).text == "still"


async def test_restarted_worker_gets_in_when_its_ghost_is_known_to_be_dead() -> None:
    hub = Hub(TOKENS, policies=OWN, heartbeat=QUICK)
    with anyio.fail_after(30):
        async with serve_hub(hub) as address, chaos_proxy(address) as proxy, running(ScriptedAgent(["ghost"]), proxy.address):
            await hub.wait_for("phone")
            proxy.black_hole()
            async with running(ScriptedAgent(["alive"]), address) as restarted:
                await restarted.worker.attached.wait()
                assert (await complete(hub.agent("phone"), ask())).text == "alive"


async def test_device_state_comes_with_the_heartbeats() -> None:
    states = [DeviceState(), DeviceState(battery=0.5, power_source=PowerSource.BATTERY, thermal=Thermal.FAIR, free_memory_bytes=2**33)]
    async with hub_with(ScriptedAgent(["x"]), device_state=lambda: states[0]) as (hub, _):
        assert hub.agent("phone").device_state == DeviceState()
        del states[0]
        with anyio.fail_after(20):
            await eventually(lambda: hub.agent("phone").device_state == states[0])
    assert hub.agent("phone").device_state == DeviceState()


@pytest.mark.parametrize(("state", "is_served"), [
    (DeviceState(battery=0.1, power_source=PowerSource.BATTERY), False),
    (DeviceState(battery=0.1), False),
    (DeviceState(battery=0.1, power_source=PowerSource.MAINS), True),
    (DeviceState(battery=0.9, power_source=PowerSource.BATTERY), True),
    (DeviceState(), True),
])  # fmt: skip
async def test_worker_with_a_low_battery_gets_no_step(state: DeviceState, is_served: bool) -> None:
    hub = Hub(TOKENS, policies={"phone": WorkerTerms(side=Side.NEAR, minimum_battery=0.2)})
    async with serve_hub(hub) as address, running(ScriptedAgent(["served"]), address, device_state=lambda: state):
        agent = await hub.wait_for("phone")
        if is_served:
            assert (await complete(agent, ask())).text == "served"
        else:
            with pytest.raises(Unavailable):
                await complete(agent, ask())


async def test_draining_worker_finishes_its_steps_and_takes_no_further_ones() -> None:
    gate, results, started = anyio.Event(), list[object](), anyio.Event()
    hub = Hub(TOKENS, policies=OWN)
    with anyio.fail_after(20):
        async with serve_hub(hub) as address, running(endless(gate), address) as state, anyio.create_task_group() as tasks:
            agent = await hub.wait_for("phone")
            tasks.start_soon(outcome, agent, ask(), results, started)
            await started.wait()
            tasks.start_soon(state.worker.drain, 20.0)
            await eventually(lambda: hub.attached["phone"].is_draining)
            with pytest.raises(Unavailable):
                await complete(agent, ask())
            gate.set()
            await state.done.wait()
    assert state.error is None
    assert results == ["first second"]


async def test_steps_beyond_the_drain_limit_are_stopped() -> None:
    agent, results, started = endless(), list[object](), anyio.Event()
    hub = Hub(TOKENS, policies=OWN)
    with anyio.fail_after(20):
        async with serve_hub(hub) as address, running(agent, address) as state, anyio.create_task_group() as tasks:
            tasks.start_soon(outcome, await hub.wait_for("phone"), ask(), results, started)
            await started.wait()
            await state.worker.drain(0.01)
            await state.done.wait()
    assert isinstance(results[0], Unavailable)
    assert agent.live_steps == 0


async def test_timeout_travels_to_the_worker() -> None:
    agent = ScriptedAgent(["x"])
    async with hub_with(agent) as (hub, _):
        await complete(hub.agent("phone"), ask(timeout=30, idempotency_key="the key"))
    assert agent.requests[0].timeout == 30
    assert agent.requests[0].idempotency_key == "the key"


async def test_timeout_holds_where_the_worker_ignores_it() -> None:
    class Deaf:
        card = AgentCard(name="deaf", side=Side.NEAR, model="deaf")

        async def step(self, request: StepRequest) -> AsyncGenerator[StepEvent, None]:
            yield TextDelta(text="first")
            with anyio.CancelScope(shield=True):
                await over.wait()

        async def aclose(self) -> None:
            raise NotImplementedError

    over = anyio.Event()
    async with hub_with(Deaf()) as (hub, _):
        with pytest.raises(DeadlineExceeded), anyio.fail_after(20):
            await complete(hub.agent("phone"), ask(timeout=0.05))
        over.set()


async def test_silent_death_of_a_worker_fails_its_steps_within_six_seconds() -> None:
    results, started, lost = list[object](), anyio.Event(), anyio.Event()
    hub = Hub(TOKENS, policies=OWN)
    async with serve_hub(hub) as address, chaos_proxy(address) as proxy, running(endless(), proxy.address):
        agent = await hub.wait_for("phone")

        async def read() -> None:
            await outcome(agent, ask(), results, started)
            lost.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            await started.wait()
            proxy.black_hole()
            with anyio.fail_after(6):
                await lost.wait()
        with pytest.raises(Unavailable):
            await complete(agent, ask())
    assert isinstance(results[0], Unavailable)


async def test_worker_stops_its_steps_when_the_hub_is_silent_and_comes_back() -> None:
    agent, results, started = endless(), list[object](), anyio.Event()
    hub = Hub(TOKENS, policies=OWN, heartbeat=QUICK)
    with anyio.fail_after(30):
        async with serve_hub(hub) as address, chaos_proxy(address) as proxy, running(agent, proxy.address) as state:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(outcome, await hub.wait_for("phone"), ask(), results, started)
                await started.wait()
                proxy.black_hole()
            await eventually(lambda: agent.live_steps == 0 and not state.worker.attached.is_set())
            assert isinstance(results[0], Unavailable)
            proxy.reset()
            await proxy.resume()
            await hub.wait_for("phone")
    assert len(agent.requests) == 1


async def test_worker_finds_the_hub_that_was_started_again() -> None:
    agent = ScriptedAgent(lambda _: "hello")
    with anyio.fail_after(60):
        async with serve_hub(Hub(TOKENS)) as address:
            pass
        async with running(agent, address) as state:
            for _ in range(2):
                hub = Hub(TOKENS, policies=OWN, heartbeat=QUICK)
                async with serve_hub(hub, address):
                    assert (await complete(await hub.wait_for("phone"), ask())).text == "hello"
                await eventually(lambda: not state.worker.attached.is_set())


async def test_server_that_is_no_hub_is_told_apart() -> None:
    async with serve(ScriptedAgent(["x"])) as server:
        with pytest.raises(Unsupported), anyio.fail_after(20):
            await Worker(ScriptedAgent(["x"]), server.address, token="any token").run()


async def test_worker_lends_several_agents() -> None:
    agents: dict[str, Agent] = {"small": ScriptedAgent(["I am small"]), "large": ScriptedAgent(["I am large"])}
    hub = Hub(TOKENS, policies=OWN)
    async with serve_hub(hub) as address, running(agents, address):
        await hub.wait_for("phone")
        assert [name for name in hub.agents if name.startswith("phone")] == ["phone", "phone/large"]
        assert (await complete(hub.agent("phone"), ask())).text == "I am small"
        assert (await complete(hub.agent("phone/large"), ask())).text == "I am large"
        with pytest.raises(Unavailable):
            await complete(hub.agent("phone/huge"), ask())


async def test_agents_of_a_hub_are_served_further() -> None:
    async with hub_with(ScriptedAgent(["from the phone"])) as (hub, _), serve(hub.agents) as server:
        remote = await RemoteAgent.connect(server.address, agent="phone")
        assert (await complete(remote, ask())).text == "from the phone"
        with pytest.raises(NotFound):  # it has a token and has never been attached, so it has no card
            await RemoteAgent.connect(server.address, agent="tablet")
        await remote.aclose()


@pytest.mark.parametrize(("reply", "fields"), [
    (ToolCall(id="1", name="open", arguments={"page": 7}), {"tools": (ToolSpec(name="open", parameters=PAGE),)}),
    (ToolCall(id="1", name="delete", arguments={}), {"tools": (ToolSpec(name="open"),)}),
    ("no call at all", {"tools": (ToolSpec(name="open"),), "tool_choice": "required"}),
    ("no JSON", {"output_schema": {"type": "object"}}),
])  # fmt: skip
async def test_hub_checks_what_a_worker_does_not(reply: Reply, fields: dict[str, object]) -> None:
    class Lax(ScriptedAgent):
        """Passes on whatever its model says."""

        async def step(self, request: StepRequest) -> AsyncGenerator[StepEvent, None]:
            lenient = ToolSpec(name=reply.name) if isinstance(reply, ToolCall) else ToolSpec(name="any")
            unasked = request.model_copy(update={"output_schema": None, "tool_choice": "auto", "tools": (lenient,)})
            async for event in super().step(unasked):
                yield event

    async with hub_with(Lax(lambda _: reply)) as (hub, _):
        for _ in range(2):  # the step fails and the worker stays
            with pytest.raises(InvalidOutput):
                await complete(hub.agent("phone"), ask("go", **fields))
        with anyio.fail_after(20):
            await eventually(lambda: hub.attached["phone"].live_steps == 0)


async def test_unusable_schema_fails_its_step_alone() -> None:
    """That it refers to itself without end is only found when there is an output to check."""

    class Lax(ScriptedAgent):
        async def step(self, request: StepRequest) -> AsyncGenerator[StepEvent, None]:
            async for event in super().step(request.model_copy(update={"output_schema": None})):
                yield event

    async with hub_with(Lax(lambda _: "[]")) as (hub, _):
        with pytest.raises(InvalidRequest), anyio.fail_after(20):
            await complete(hub.agent("phone"), ask(output_schema={"$ref": "#"}))
        assert (await complete(hub.agent("phone"), ask())).text == "[]"


@pytest.mark.parametrize("is_slow", [False, True], ids=["fails", "is timed out"])
async def test_step_whose_agent_cannot_tidy_up_ends_once(is_slow: bool) -> None:
    class Untidy(ScriptedAgent):
        async def step(self, request: StepRequest) -> AsyncGenerator[StepEvent, None]:
            try:
                async for event in super().step(request):
                    yield event
            finally:
                if is_slow:
                    await anyio.sleep_forever()
                raise Unavailable("too late to matter")

    hub = Hub(TOKENS, policies=OWN)
    with anyio.fail_after(20):
        async with serve_hub(hub) as address, running(Untidy(lambda _: "well"), address) as state:
            agent = await hub.wait_for("phone")
            session = hub.attached["phone"]
            for _ in range(2):  # what would have come behind the first end has come before the second
                assert (await complete(agent, ask(timeout=1))).text == "well"
                await eventually(lambda: state.worker.live_steps == 0)
            assert hub.attached["phone"] is session


async def test_event_too_large_for_the_wire_fails_its_step_alone() -> None:
    async with hub_with(ScriptedAgent([["x" * (MAX_MESSAGE_BYTES + 1)], "of the usual size"])) as (hub, _):
        session = hub.attached["phone"]
        with pytest.raises(InvalidOutput):
            await complete(hub.agent("phone"), ask())
        assert (await complete(hub.agent("phone"), ask())).text == "of the usual size"
        assert hub.attached["phone"] is session


async def test_names_that_a_worker_no_longer_lends_are_forgotten() -> None:
    hub = Hub(TOKENS, policies=OWN, heartbeat=QUICK)
    async with serve_hub(hub) as address:
        for name in ("one", "two"):
            agents: dict[str, Agent] = {"first": ScriptedAgent(["x"]), name: ScriptedAgent(["x"])}
            async with running(agents, address):
                await hub.wait_for("phone")
                assert sorted(hub.agents) == ["phone", f"phone/{name}", "tablet"]
            with anyio.fail_after(20):
                await eventually(lambda: "phone" not in hub.attached)


@pytest.mark.parametrize("name", ["", "phone/large"])
def test_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(ConfigError):
        Hub({name: "the token of nobody"})


async def test_worker_that_is_paired_says_when_its_hub_comes_back_with_another_certificate(
    certificate: tuple[Path, Path], other_certificate: tuple[Path, Path]
) -> None:
    own, other = (ServerTls(certificate=pair[0], private_key=pair[1]) for pair in (certificate, other_certificate))
    fingerprint = fingerprint_of(ssl.PEM_cert_to_DER_cert(certificate[0].read_text(encoding="ascii")))
    hub = Hub(TOKENS, policies=OWN)
    with anyio.fail_after(60):
        async with serve_hub(Hub(TOKENS), tls=own) as address:
            pass
        worker = Worker(ScriptedAgent(["hello"]), address, token=TOKENS["phone"], fingerprint=fingerprint)
        running = asyncio.create_task(worker.run())  # it waits for the hub
        async with serve_hub(hub, address, tls=own):
            assert (await complete(await hub.wait_for("phone"), ask())).text == "hello"
        async with serve_hub(Hub(TOKENS), address, tls=other):
            with pytest.raises(ConfigError, match="paired"):
                await running


async def test_impossible_heartbeats_are_not_obeyed() -> None:
    hub = Hub(TOKENS, heartbeat=Heartbeat(interval=5.0, silence_limit=1.0))
    async with serve_hub(hub) as address, running(ScriptedAgent(["x"]), address) as state:
        await hub.wait_for("phone")
        with anyio.fail_after(20):
            await eventually(lambda: "phone" not in hub.attached)
        assert not state.worker.attached.is_set()
