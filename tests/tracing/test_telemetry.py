"""Runs as spans of OpenTelemetry."""

import json
import sys
from contextlib import aclosing
from typing import Any

import anyio
import pytest
from in_memory_engine import InMemoryEngine
from traced_tasks import FREE, LOOKUP, PAID, PUBLIC, hybrid, lookup

from nearfar import Hybrid, MemoryStore, Source, Tier, instrument, tool
from nearfar.orchestrator.task.events import AttemptEnded
from nearfar.orchestrator.task.modes import Strategy
from nearfar.orchestrator.task.policy import SupervisionConfig
from nearfar.protocols import Attachment, Capabilities, ConfigError, Message, ScriptedAgent, Side, StepRequest, ToolCall, Unavailable
from nearfar.protocols.fakes import Reply

pytest.importorskip("opentelemetry.sdk", reason="spans need the extra 'otel', and a test the SDK")
from conventions import check_span
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

pytestmark = pytest.mark.anyio


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def provider(exporter: InMemorySpanExporter) -> TracerProvider:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider


def by_name(exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    """The last span of each name."""
    return {span.name: span for span in exporter.get_finished_spans()}


def parent_of(span: ReadableSpan, exporter: InMemorySpanExporter) -> str:
    """The name of the span above."""
    assert span.parent is not None
    return {each.context.span_id: each.name for each in exporter.get_finished_spans()}[span.parent.span_id]


async def run_cascade(exporter: InMemorySpanExporter, provider: TracerProvider, **options: Any) -> dict[str, ReadableSpan]:  # noqa: ANN401 - passed on
    """A run on both sides."""
    async with hybrid([LOOKUP, "Tomas Berg"], [LOOKUP, "Mira Falk"]) as agents:
        instrument(agents, tracer_provider=provider, **options)
        await agents.run("Who leads Orbix Labs?", strategy="cascade", idempotency_key="r1", session="s1")
    return by_name(exporter)


async def test_a_run_is_a_workflow_of_attempts_with_their_steps_and_tool_calls(
    exporter: InMemorySpanExporter, provider: TracerProvider
) -> None:
    await run_cascade(exporter, provider)
    assert [(span.name, parent_of(span, exporter)) for span in exporter.get_finished_spans() if span.parent] == [
        ("chat scripted", "invoke_agent near"),
        ("execute_tool lookup", "invoke_agent near"),
        ("chat scripted", "invoke_agent near"),
        ("invoke_agent near", "invoke_workflow cascade"),
        ("chat scripted", "invoke_agent far"),
        ("execute_tool lookup", "invoke_agent far"),
        ("chat scripted", "invoke_agent far"),
        ("invoke_agent far", "invoke_workflow cascade"),
    ]


async def test_a_run_is_a_child_of_the_span_in_which_it_is_asked_for(exporter: InMemorySpanExporter, provider: TracerProvider) -> None:
    with provider.get_tracer("app").start_as_current_span("request") as request:
        spans = await run_cascade(exporter, provider)
    above = request.get_span_context()
    root = spans["invoke_workflow cascade"]
    assert root.parent is not None
    assert root.parent.span_id == above.span_id
    assert {span.context.trace_id for span in exporter.get_finished_spans()} == {above.trace_id}


def test_so_is_a_run_that_a_synchronous_caller_waits_for(exporter: InMemorySpanExporter, provider: TracerProvider) -> None:
    with hybrid(["ok"], []) as agents, provider.get_tracer("app").start_as_current_span("request") as request:
        instrument(agents, tracer_provider=provider)
        agents.run_sync("Hi", strategy="device")
    root = by_name(exporter)["invoke_workflow device"]
    assert root.parent is not None
    assert root.parent.span_id == request.get_span_context().span_id


async def test_a_streamed_run_leaves_the_callers_span_current(exporter: InMemorySpanExporter, provider: TracerProvider) -> None:
    async with hybrid(["one", "two"], []) as agents:
        instrument(agents, tracer_provider=provider)
        with provider.get_tracer("app").start_as_current_span("request") as request:
            async for _ in agents.stream("Hi", strategy="device"):
                assert trace.get_current_span() is request
    assert parent_of(by_name(exporter)["invoke_workflow device"], exporter) == "request"


async def test_tools_run_within_their_span(exporter: InMemorySpanExporter, provider: TracerProvider) -> None:
    @tool(effect="read")
    async def call_out() -> str:
        """Call another service."""
        with provider.get_tracer("app").start_as_current_span("GET"):
            return "ok"

    async with hybrid([ToolCall(id="1", name="call_out"), "ok"], []) as agents:
        instrument(agents, tracer_provider=provider)
        await agents.run("Hi", strategy="device", tools=[call_out])
    assert parent_of(by_name(exporter)["GET"], exporter) == "execute_tool call_out"


async def test_steps_tell_who_was_asked_and_what_it_took(exporter: InMemorySpanExporter, provider: TracerProvider) -> None:
    step = (await run_cascade(exporter, provider))["chat scripted"]
    assert step.attributes is not None
    assert (
        step.attributes.items()
        >= {
            "gen_ai.provider.name": "nearfar",
            "gen_ai.agent.name": "far",
            "gen_ai.response.model": "scripted",
            "gen_ai.response.finish_reasons": ("stop",),
            "gen_ai.usage.output_tokens": 2,
            "gen_ai.conversation.id": "s1",
            "nearfar.side": "far",
        }.items()
    )
    assert step.attributes["nearfar.dollars"] > 0  # type: ignore[operator]
    assert step.kind is SpanKind.CLIENT


async def test_nothing_that_was_said_is_in_a_span(exporter: InMemorySpanExporter, provider: TracerProvider) -> None:
    await run_cascade(exporter, provider)
    told = "".join(span.to_json() for span in exporter.get_finished_spans())
    for said in ("Orbix", "Falk", "Berg", "occurs in no"):
        assert said not in told


async def test_what_was_said_is_there_where_the_app_asks_for_it(exporter: InMemorySpanExporter, provider: TracerProvider) -> None:
    spans = await run_cascade(exporter, provider, content=True)
    tool, step = spans["execute_tool lookup"].attributes, spans["chat scripted"].attributes
    assert tool is not None
    assert step is not None
    assert (json.loads(str(tool["gen_ai.tool.call.arguments"])), tool["gen_ai.tool.call.result"]) == (LOOKUP.arguments, "Mira Falk")
    said = {"role": "assistant", "parts": [{"type": "text", "content": "Mira Falk"}], "finish_reason": "stop"}
    assert json.loads(str(step["gen_ai.output.messages"])) == [said]
    assert [message["role"] for message in json.loads(str(step["gen_ai.input.messages"]))] == ["user", "assistant", "tool"]


async def test_an_attachment_is_named_by_its_hash(exporter: InMemorySpanExporter, provider: TracerProvider) -> None:
    image = Attachment(media_type="image/png", data=b"\x89PNG\r\n\x1a\n")
    sees = Capabilities(tools=True, json_schema=True, cancellation=True, images=True)
    async with Hybrid(near=ScriptedAgent(["a cat"], name="near", capabilities=sees)) as agents:
        instrument(agents, tracer_provider=provider, content=True)
        await agents.run([Message.user("What is this?", (image,))], strategy="device")
    step = by_name(exporter)["chat scripted"]
    check_span(step)
    assert step.attributes is not None
    (asked,) = json.loads(str(step.attributes["gen_ai.input.messages"]))
    part = {"type": "file", "mime_type": "image/png", "modality": "image", "file_id": f"sha256:{image.digest}"}
    assert asked["parts"] == [{"type": "text", "content": "What is this?"}, part]


async def test_credentials_stay_out_of_contents(exporter: InMemorySpanExporter, provider: TracerProvider) -> None:
    read = ToolCall(id="1", name="read_mail", arguments={"subject": "vault"})
    async with hybrid([read, "at nine"], []) as agents:
        instrument(agents, tracer_provider=provider, content=True)
        await agents.run("When?", strategy="device")
    told = "".join(span.to_json() for span in exporter.get_finished_spans())
    assert "the vault opens at nine" in told
    assert "abcdefgh1234" not in told


async def test_a_failed_run_is_an_error(exporter: InMemorySpanExporter, provider: TracerProvider) -> None:
    async with hybrid([Unavailable("gone")], []) as agents:
        instrument(agents, tracer_provider=provider)
        with pytest.raises(Unavailable):
            await agents.run("Who?", strategy="device")
    spans = by_name(exporter)
    for name in ("chat scripted", "invoke_agent near", "invoke_workflow device"):
        attributes = spans[name].attributes
        assert attributes is not None
        assert (attributes["error.type"], spans[name].status.is_ok) == ("Unavailable", False)


async def test_a_cancelled_run_leaves_no_span_open(exporter: InMemorySpanExporter, provider: TracerProvider) -> None:
    started = anyio.Event()

    @tool(effect="read")
    async def wait() -> str:
        """Wait."""
        started.set()
        await anyio.sleep_forever()
        return ""

    async with hybrid([ToolCall(id="1", name="wait")], []) as agents, anyio.create_task_group() as tasks:
        instrument(agents, tracer_provider=provider)

        async def ask() -> None:
            await agents.run("Hi", strategy="device", tools=[wait])

        tasks.start_soon(ask)
        await started.wait()
        tasks.cancel_scope.cancel()
    spans = by_name(exporter)
    assert spans.keys() == {"chat scripted", "execute_tool wait", "invoke_agent near", "invoke_workflow device"}
    root = spans["invoke_workflow device"].attributes
    assert root is not None
    assert (root["nearfar.outcome"], root["error.type"]) == ("stopped", "CancelledError")


async def test_a_reader_that_leaves_before_the_result_leaves_no_span_open(exporter: InMemorySpanExporter, provider: TracerProvider) -> None:
    async with hybrid(["ok"], []) as agents:
        instrument(agents, tracer_provider=provider)
        async with aclosing(agents.stream("Hi", strategy="device")) as events:
            async for event in events:
                if isinstance(event, AttemptEnded):
                    break
    root = by_name(exporter)["invoke_workflow device"].attributes
    assert root is not None
    assert root["nearfar.outcome"] == "stopped"


async def test_observers_that_fail_fail_no_run(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(SpanProcessor):
        def on_start(self, span: object, parent_context: object = None) -> None:
            raise RuntimeError("no collector")

    provider = TracerProvider()
    provider.add_span_processor(Failing())
    async with hybrid([LOOKUP, "Mira Falk"], []) as agents:
        instrument(agents, tracer_provider=provider)
        assert (await agents.run("Who leads Orbix Labs?", strategy="device")).text == "Mira Falk"
    assert "no collector" in caplog.text


async def test_without_opentelemetry_the_app_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    async with hybrid([], []) as agents:
        with pytest.raises(ConfigError, match="opentelemetry"):
            instrument(agents)


def works(request: StepRequest) -> Reply:
    """A near agent: it looks once, then answers; of a chunk, it finds what is asked for."""
    if request.output_schema is not None:
        return json.dumps({"explanation": "It says so.", "citation": "Mira Falk leads Orbix Labs", "answer": "Mira Falk"})
    return LOOKUP if request.tools and request.messages[-1].role != "tool" else "Mira Falk"


def leads(request: StepRequest) -> Reply:
    """A far agent: it plans, cuts tasks, writes jobs, finds no fault, and answers."""
    asked = request.messages[0].text
    if asked.startswith("Cut the task"):
        parts = [("a", []), ("b", ["a"])]
        return json.dumps({"subtasks": [{"id": name, "task": f"Who leads Orbix Labs? ({name})", "needs": needs} for name, needs in parts]})
    if "that you cannot see" in asked:
        found = {"answer": "Mira Falk", "scratchpad": "", "jobs": []}
        job = {"jobs": [{"instruction": "Who leads Orbix Labs?", "advice": ""}]}
        return json.dumps(found if "weigh the citations" in asked else job)
    if "CONTINUE" in asked:
        return "CONTINUE"
    return works(request) if request.tools else "Look the lab up."


@pytest.mark.parametrize("content", [False, True])
@pytest.mark.parametrize("strategy", [strategy for strategy in Strategy if strategy is not Strategy.AUTO])
async def test_the_spans_of_every_strategy_keep_to_the_conventions(
    strategy: Strategy, content: bool, exporter: InMemorySpanExporter, provider: TracerProvider
) -> None:
    near = ScriptedAgent(works, name="near", prices=FREE, confidence=0.9)
    far = ScriptedAgent(leads, name="far", side=Side.FAR, prices=PAID)
    policy = PUBLIC.model_copy(update={"strategy": strategy, "supervision": SupervisionConfig(interval=1)})
    context = "Mira Falk leads Orbix Labs. " * 40 if strategy is Strategy.MINIONS else ""
    async with Hybrid(near=near, far=far, tools=[lookup], instructions="Be brief.", policy=policy) as agents:
        instrument(agents, tracer_provider=provider, content=content, backends=["openinference", "langfuse"])
        result = await agents.run("Who leads Orbix Labs?", session="s1", context=context)
    spans = exporter.get_finished_spans()
    for span in spans:
        check_span(span)
    assert len([span for span in spans if span.name.startswith("chat ")]) == len(result.calls)
    assert len([span for span in spans if span.parent is None]) == 1
    planning = [call for call in result.calls if call.role in ("plan", "jobs")]
    assert len([span for span in spans if span.name == "plan far"]) == len(planning)
    assert bool(planning) == (strategy in (Strategy.PEVR, Strategy.MINIONS, Strategy.SUBTASKS))


async def test_the_search_of_the_memory_is_a_span_before_the_attempts(exporter: InMemorySpanExporter, provider: TracerProvider) -> None:
    store = MemoryStore(InMemoryEngine())
    store.bound(source=Source.USER).put(("labs",), "lead", {"text": "Mira Falk leads Orbix Labs."}, tier=Tier.SHARED)
    async with Hybrid(near=ScriptedAgent(["Mira Falk"], name="near"), memory=store, policy=PUBLIC) as agents:
        instrument(agents, tracer_provider=provider)
        await agents.run("Who leads Orbix Labs?", strategy="device")
    search = by_name(exporter)["search_memory"]
    check_span(search)
    assert search.attributes is not None
    assert search.attributes["gen_ai.memory.record.count"] == 1
    assert parent_of(search, exporter) == "invoke_workflow device"
    root = by_name(exporter)["invoke_workflow device"]
    assert root.start_time is not None
    assert search.start_time == root.start_time
