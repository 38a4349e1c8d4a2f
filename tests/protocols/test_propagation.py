"""The trace of a caller goes on behind gRPC, with OpenTelemetry and without it."""

import subprocess
import sys
from collections.abc import AsyncGenerator

import pytest
from attached_world import ask, hub_with

from nearfar.protocols import ScriptedAgent, StepEvent, StepRequest, complete
from nearfar.protocols.client import RemoteAgent
from nearfar.protocols.propagation import continued_trace, trace_headers, traceparent
from nearfar.protocols.server import serve

pytestmark = pytest.mark.anyio

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
GIVEN = f"00-{TRACE}-{SPAN}-01"


class Listening(ScriptedAgent):
    """Notes the trace context in which each step is taken."""

    def __init__(self) -> None:
        super().__init__(lambda _: "ok")
        self.heard: list[str] = []

    async def step(self, request: StepRequest) -> AsyncGenerator[StepEvent, None]:
        self.heard.append(traceparent())
        async for event in super().step(request):
            yield event


async def test_a_server_continues_the_trace_of_its_caller() -> None:
    agent = Listening()
    async with serve(agent) as server:
        remote = await RemoteAgent.connect(server.address)
        with continued_trace(GIVEN):
            await complete(remote, ask())
        await complete(remote, ask())
        await remote.aclose()
    assert agent.heard == [GIVEN, ""]


async def test_a_worker_continues_the_trace_that_its_hub_was_given() -> None:
    agent = Listening()
    async with hub_with(agent) as (hub, _):
        with continued_trace(GIVEN):
            await complete(hub.agent("phone"), ask())
        await complete(hub.agent("phone"), ask())
    assert agent.heard == [GIVEN, ""]


@pytest.mark.parametrize(
    "given",
    [
        None,
        7,
        b"00",
        "",
        GIVEN.upper(),
        f"{GIVEN}-more",
        GIVEN.replace("00-", "ff-", 1),
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        GIVEN + "\n",
        "x" * 100_000,
    ],
)
def test_what_is_no_trace_context_is_ignored(given: object) -> None:
    with continued_trace(given):
        assert trace_headers() == {}


def test_spans_are_children_of_the_callers_span() -> None:
    pytest.importorskip("opentelemetry.sdk", reason="spans need the SDK")
    from opentelemetry.sdk.trace import TracerProvider

    tracer = TracerProvider().get_tracer("test")
    with continued_trace(GIVEN), tracer.start_as_current_span("server") as span:
        own = span.get_span_context()
        assert (f"{own.trace_id:032x}", trace_headers()) == (TRACE, {"traceparent": f"00-{TRACE}-{own.span_id:016x}-01"})
    assert trace_headers() == {}


def test_nothing_of_opentelemetry_is_loaded_for_it() -> None:
    program = (
        "import sys\n"
        "from nearfar.protocols.propagation import continued_trace, traceparent\n"
        f"with continued_trace({GIVEN!r}):\n"
        "    print(traceparent())\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split("\n")[:2] == [GIVEN, "[]"]
