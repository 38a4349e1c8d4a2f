"""A phone's worker and its hub: coming, going, being cancelled, and what happens when one of them is suddenly not there."""

import asyncio
import logging
import random
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import anyio
import grpc
import pytest
from certificates import HOSTS, Authority, write_certificate
from thin_phone import NAME, TOKEN, lent_phone, llama_http, thin_worker

from nearfar.device import thin_worker as attachment
from nearfar.protocols import (
    ConfigError,
    DeadlineExceeded,
    InvalidOutput,
    Message,
    PowerSource,
    ScriptedAgent,
    Sensitivity,
    StepRequest,
    ToolCall,
    ToolSpec,
    Unauthenticated,
    Unavailable,
    WorkerCrashed,
    complete,
    stream,
)
from nearfar.protocols.access import Access, Context
from nearfar.protocols.address import fingerprint_of
from nearfar.protocols.hub import SERVICE, Heartbeat, Hub, serve_hub
from nearfar.protocols.server import listening
from nearfar.protocols.testing import ChaosProxy, chaos_proxy, eventually
from nearfar.protocols.tls import ClientTls, ServerTls
from nearfar.protocols.v1 import hub_pb2
from nearfar.protocols.wire import request_to_proto

pytestmark = pytest.mark.anyio
REPLY = "Good morning."


def greeting(_: StepRequest) -> str:
    return REPLY


def asking(text: str = "Hello?", **fields: object) -> StepRequest:
    return StepRequest.model_validate({"messages": (Message.user(text),), **fields})


async def test_a_step_runs_on_the_phone() -> None:
    async with lent_phone(ScriptedAgent(greeting)) as (phone, _):
        reply = await complete(phone.agent, asking())
    assert (reply.text, phone.agent.card.name) == (REPLY, NAME)


async def test_the_hub_knows_the_state_of_the_phone() -> None:
    async with lent_phone(ScriptedAgent(greeting)) as (phone, _):
        state = phone.agent.device_state
    assert (state.battery, state.power_source, state.thermal) == (0.5, PowerSource.BATTERY, None)


async def test_many_steps_at_once_keep_apart() -> None:
    async with lent_phone(ScriptedAgent(lambda request: f"about {request.messages[-1].text}")) as (phone, _):
        replies = await asyncio.gather(*(complete(phone.agent, asking(f"{number}?")) for number in range(20)))
    assert [reply.text for reply in replies] == [f"about {number}?" for number in range(20)]


async def test_leaving_a_step_stops_it_on_the_phone() -> None:
    agent = ScriptedAgent(lambda request: ["word "] * 1000 if request.max_output_tokens != 1 else "Hi", pace=0.001)
    async with lent_phone(agent) as (phone, http):
        async with stream(phone.agent, asking()) as events:
            await anext(aiter(events))
        with anyio.fail_after(10):
            await eventually(lambda: agent.live_steps == 0)
    assert http.abandoned == 1


async def test_a_deadline_stops_the_step_on_the_phone() -> None:
    agent = ScriptedAgent(lambda request: ["word "] * 1000 if request.max_output_tokens != 1 else "Hi", pace=0.01)
    async with lent_phone(agent) as (phone, _):
        with pytest.raises(DeadlineExceeded):
            await complete(phone.agent, asking(timeout=0.2))
        with anyio.fail_after(10):
            await eventually(lambda: agent.live_steps == 0)


async def test_arguments_that_do_not_fit_the_tool_are_invalid_output() -> None:
    """The phone has no jsonschema: its hub checks."""
    tool = ToolSpec(name="dial", parameters={"type": "object", "properties": {"number": {"type": "integer", "maximum": 9}}})
    agent = ScriptedAgent(lambda request: ToolCall(id="1", name="dial", arguments={"number": 10}) if request.tools else "Hi")
    async with lent_phone(agent) as (phone, http):
        http.keeps_to_parameters = False
        with pytest.raises(InvalidOutput, match="10 is greater than the maximum of 9"):
            await complete(phone.agent, asking(tools=(tool,)))


async def test_a_stopped_worker_finishes_its_steps_and_takes_no_more() -> None:
    finish = anyio.Event()
    agent = ScriptedAgent(lambda request: ["first ", finish, "last"] if request.max_output_tokens != 1 else "Hi")
    async with lent_phone(agent) as (phone, _):
        async with stream(phone.agent, asking()) as events:
            texts = [await anext(aiter(events))]
            phone.stopping.set()
            with anyio.fail_after(10):
                await eventually(lambda: phone.hub.attached[NAME].is_draining)
            with pytest.raises(Unavailable):
                await complete(phone.agent, asking())
            finish.set()
            texts += [event async for event in events]
        with anyio.fail_after(10):
            await phone.running
        assert NAME not in phone.hub.attached
    assert [event.type for event in texts] == ["text", "text", "finished"]


async def test_the_step_fails_and_the_worker_leaves_when_llama_server_dies() -> None:
    hang = anyio.Event()
    agent = ScriptedAgent(lambda request: ["first ", hang] if request.max_output_tokens != 1 else "Hi")
    async with AsyncExitStack() as server:
        http = await server.enter_async_context(llama_http(agent))
        hub = Hub({NAME: TOKEN})
        async with serve_hub(hub) as address:
            stopping = asyncio.Event()
            running = asyncio.create_task(attachment.serve(thin_worker(http.url, address, look_every=0.05), stopping))
            lent = await hub.wait_for(NAME)
            async with stream(lent, asking(sensitivity=Sensitivity.PUBLIC)) as events:
                await anext(aiter(events))
                await server.aclose()
                with pytest.raises((WorkerCrashed, Unavailable)):  # whichever is noticed first
                    await anext(aiter(events))
            with anyio.fail_after(10):
                await eventually(lambda: NAME not in hub.attached)
            assert not running.done()  # llama-server may come back
            stopping.set()
            with anyio.fail_after(10):
                await running


async def test_the_worker_comes_back_to_a_hub_that_was_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attachment, "_FIRST_DELAY", 0.01)
    stopping = asyncio.Event()
    async with llama_http(ScriptedAgent(greeting)) as http:
        async with serve_hub(Hub({NAME: TOKEN})) as address:
            pass
        running = asyncio.create_task(attachment.serve(thin_worker(http.url, address), stopping))
        for _ in range(2):
            hub = Hub({NAME: TOKEN})
            async with serve_hub(hub, address):
                with anyio.fail_after(20):
                    lent = await hub.wait_for(NAME)
                    assert (await complete(lent, asking(sensitivity=Sensitivity.PUBLIC))).text == REPLY
        stopping.set()
        with anyio.fail_after(10):
            await running


@pytest.mark.parametrize("fault", [ChaosProxy.black_hole, ChaosProxy.reset, ChaosProxy.close], ids=lambda fault: fault.__name__)
async def test_a_connection_that_breaks_stops_the_steps_on_the_phone_and_is_made_anew(
    fault: Callable[[ChaosProxy], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attachment, "_FIRST_DELAY", 0.01)
    hang, stopping = anyio.Event(), asyncio.Event()
    agent = ScriptedAgent(lambda request: ["first ", hang] if request.max_output_tokens == 99 else REPLY)
    hub = Hub({NAME: TOKEN}, heartbeat=Heartbeat(interval=0.1, silence_limit=0.5))
    async with llama_http(agent) as http, serve_hub(hub) as address, chaos_proxy(address) as proxy:
        running = asyncio.create_task(attachment.serve(thin_worker(http.url, proxy.address), stopping))
        lent = await hub.wait_for(NAME)
        with anyio.fail_after(20):
            async with stream(lent, asking(sensitivity=Sensitivity.PUBLIC, max_output_tokens=99)) as events:
                await anext(aiter(events))
                fault(proxy)
                with pytest.raises(Unavailable):
                    await anext(aiter(events))
            await eventually(lambda: agent.live_steps == 0)
            proxy.close()
            await proxy.resume()
            again = await hub.wait_for(NAME)
            assert (await complete(again, asking(sensitivity=Sensitivity.PUBLIC))).text == REPLY
            stopping.set()
            await running


REGISTERED = hub_pb2.HubMessage(registered=hub_pb2.Registered(worker=NAME, heartbeat_interval=1.0, silence_limit=30.0))


@asynccontextmanager
async def hub_that_says(*messages: bytes) -> AsyncIterator[tuple[str, list[hub_pb2.WorkerMessage]]]:
    """A hub that sends these bytes to each worker: its address, and what its workers have sent."""
    heard: list[hub_pb2.WorkerMessage] = []

    async def attach(_: object, context: Context) -> None:
        for message in messages:
            await context.write(message)
        while isinstance(said := await context.read(), hub_pb2.WorkerMessage):
            heard.append(said)

    async def close() -> None:
        """There is nothing to end."""

    handler = grpc.stream_stream_rpc_method_handler(attach, hub_pb2.WorkerMessage.FromString, bytes)
    services = {SERVICE: grpc.method_handlers_generic_handler(SERVICE, {"Attach": handler})}
    async with listening(services, "localhost:0", access=Access(None), tls=None, insecure=False, closing=close, time_limit=1.0) as address:
        yield str(address), heard


@asynccontextmanager
async def serving(url: str, address: str) -> AsyncIterator["asyncio.Task[None]"]:
    """A thin worker of the hub at `address`, until the block ends."""
    running = asyncio.create_task(attachment.serve(thin_worker(url, address), asyncio.Event()))
    try:
        yield running
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize("told", [(b"\xff\xff\xff",), (REGISTERED.SerializeToString(), b"\x1a\x06\x08\x01\x12\x02\xff\xfe")])
async def test_bytes_that_are_no_message_do_not_end_the_worker(told: tuple[bytes, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "uniform", lambda least, _: least)
    async with (
        llama_http(ScriptedAgent(greeting)) as phone,
        hub_that_says(*told) as (address, heard),
        serving(phone.url, address) as running,
    ):
        await eventually(lambda: running.done() or sum(message.HasField("register") for message in heard) >= 3)
        assert not running.done()


async def test_a_timeout_that_is_no_number_fails_its_step_alone() -> None:
    request = request_to_proto(asking())
    starts = [
        hub_pb2.HubMessage(start=hub_pb2.StartStep(step=number, agent=NAME, timeout=seconds, request=request))
        for number, seconds in ((1, float("nan")), (2, 60.0))
    ]
    told = [message.SerializeToString() for message in (REGISTERED, *starts)]

    async with llama_http(ScriptedAgent(greeting)) as phone, hub_that_says(*told) as (address, heard), serving(phone.url, address):
        await eventually(lambda: any(message.output.event.HasField("finished") for message in heard))
    ended = {message.output.step: message.output.failure.reason for message in heard if message.HasField("output")}
    assert ended == {1: "InvalidRequest", 2: ""}


async def test_a_wrong_token_ends_the_worker() -> None:
    async with llama_http(ScriptedAgent(greeting)) as http, serve_hub(Hub({NAME: "another token"})) as address:
        with anyio.fail_after(10), pytest.raises(Unauthenticated):
            await attachment.serve(thin_worker(http.url, address), asyncio.Event())


async def test_a_revoked_token_ends_the_worker_and_its_steps() -> None:
    hang = anyio.Event()
    agent = ScriptedAgent(lambda request: ["first ", hang] if request.max_output_tokens != 1 else "Hi")
    async with lent_phone(agent) as (phone, _), stream(phone.agent, asking()) as events:
        await anext(aiter(events))
        phone.hub.revoke(NAME)
        with anyio.fail_after(10), pytest.raises(Unauthenticated):
            await phone.running
        with pytest.raises(Unavailable):
            await anext(aiter(events))


async def test_a_second_worker_with_the_same_token_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attachment, "_FIRST_DELAY", 0.001)
    monkeypatch.setattr(attachment, "_REFUSED_DELAY", 0.001)
    async with lent_phone(ScriptedAgent(greeting)) as (phone, http):
        with anyio.fail_after(20), pytest.raises(ConfigError, match="another worker"):
            await attachment.serve(thin_worker(http.url, phone.address), asyncio.Event())
        assert (await complete(phone.agent, asking())).text == REPLY


def test_a_restarted_phone_outlasts_its_own_ghost() -> None:
    assert Heartbeat().silence_limit + Heartbeat().interval < attachment._MOST_REFUSALS * attachment._REFUSED_DELAY


async def test_pauses_grow_and_stay_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []

    def longest(_: float, upper: float) -> float:
        asked.append(upper)
        return 0.0

    monkeypatch.setattr(random, "uniform", longest)
    for failures in (1, 2, 3, 5000):
        await attachment._pause(failures, asyncio.Event())
    assert asked == [1.0, 2.0, 4.0, 30.0]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_certificate(tmp_path_factory.mktemp("tls"))


def fingerprint_in(certificate: Path) -> str:
    return fingerprint_of(ssl.PEM_cert_to_DER_cert(certificate.read_text(encoding="ascii")))


async def test_a_paired_worker_attaches_over_tls_and_its_token_is_in_no_log(
    certificate: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    hub, stopping = Hub({NAME: TOKEN}), asyncio.Event()
    tls = ServerTls(certificate=certificate[0], private_key=certificate[1])
    async with llama_http(ScriptedAgent(greeting)) as http, serve_hub(hub, tls=tls) as address:
        worker = thin_worker(http.url, address, fingerprint=fingerprint_in(certificate[0]))
        running = asyncio.create_task(attachment.serve(worker, stopping))
        with anyio.fail_after(20):
            lent = await hub.wait_for(NAME)
            assert (await complete(lent, asking(sensitivity=Sensitivity.PUBLIC))).text == REPLY
            stopping.set()
            await running
    assert "attached to" in caplog.text
    assert TOKEN not in caplog.text


async def test_a_worker_shows_its_certificate_to_a_hub_that_demands_one(tmp_path: Path) -> None:
    authority, hub, stopping = Authority(tmp_path), Hub({NAME: TOKEN}), asyncio.Event()
    (certificate, key), (own, own_key) = authority.issue(*HOSTS), authority.issue(NAME)
    tls = ServerTls(certificate=certificate, private_key=key, client_roots=authority.certificate)
    async with llama_http(ScriptedAgent(greeting)) as http, serve_hub(hub, tls=tls) as address:
        with anyio.fail_after(20), pytest.raises(Unauthenticated, match="demands a certificate"):
            await attachment.serve(thin_worker(http.url, address, fingerprint=fingerprint_in(certificate)), stopping)
        shown = ClientTls(certificate=own, private_key=own_key)
        worker = thin_worker(http.url, address, fingerprint=fingerprint_in(certificate), own=shown)
        running = asyncio.create_task(attachment.serve(worker, stopping))
        with anyio.fail_after(20):
            await hub.wait_for(NAME)
            stopping.set()
            await running


async def test_a_worker_refuses_a_hub_with_another_certificate(certificate: tuple[Path, Path], tmp_path: Path) -> None:
    other, key = write_certificate(tmp_path)
    hub = Hub({NAME: TOKEN})
    async with (
        llama_http(ScriptedAgent(greeting)) as http,
        serve_hub(hub, tls=ServerTls(certificate=other, private_key=key)) as address,
    ):
        worker = thin_worker(http.url, address, fingerprint=fingerprint_in(certificate[0]))
        with anyio.fail_after(20), pytest.raises(ConfigError, match="paired"):
            await attachment.serve(worker, asyncio.Event())
    assert not hub.attached


async def test_a_worker_says_when_its_hub_comes_back_with_another_certificate(
    certificate: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attachment, "_FIRST_DELAY", 0.01)
    own, other = (ServerTls(certificate=files[0], private_key=files[1]) for files in (certificate, write_certificate(tmp_path)))
    hub = Hub({NAME: TOKEN})
    with anyio.fail_after(30):
        async with llama_http(ScriptedAgent(greeting)) as http:
            async with serve_hub(hub, tls=own) as address:
                worker = thin_worker(http.url, address, fingerprint=fingerprint_in(certificate[0]))
                running = asyncio.create_task(attachment.serve(worker, asyncio.Event()))
                await hub.wait_for(NAME)
            async with serve_hub(Hub({NAME: TOKEN}), address, tls=other):
                with pytest.raises(ConfigError, match="paired"):
                    await running
