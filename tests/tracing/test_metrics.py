"""Metrics of runs, for OpenTelemetry and for Prometheus."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from traced_tasks import FREE, LOOKUP, PAID, PUBLIC, hybrid

from nearfar import CacheConfig, Hybrid, Policy, Records, instrument, tool
from nearfar.orchestrator.task.routing_policy import AmountsConfig, LimitsConfig
from nearfar.protocols import ApprovalNeeded, PrivacyViolation, ScriptedAgent, Side, ToolCall, Unavailable

pytest.importorskip("opentelemetry.sdk", reason="metrics need the extra 'otel', and a test the SDK")
parser = pytest.importorskip("prometheus_client.parser", reason="a test reads metrics as Prometheus does")
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader, NumberDataPoint

pytestmark = pytest.mark.anyio

INFERENCE = {
    "gen_ai.client.inference.duration",
    "gen_ai.client.inference.time_to_first_chunk",
    "gen_ai.client.inference.time_per_output_chunk",
    "gen_ai.client.inference.operation.input_tokens",
    "gen_ai.client.inference.operation.output_tokens",
    "gen_ai.client.inference.usage.input_tokens",
    "gen_ai.client.inference.usage.output_tokens",
    "gen_ai.client.inference.usage.cache_read.input_tokens",
    "gen_ai.client.inference.usage.cache_write.input_tokens",
    "gen_ai.client.inference.usage.reasoning.output_tokens",
    "gen_ai.invoke_workflow.duration",
}
OLDER = {
    "gen_ai.client.operation.duration",
    "gen_ai.client.operation.time_to_first_chunk",
    "gen_ai.client.operation.time_per_output_chunk",
    "gen_ai.client.token.usage",
    "gen_ai.workflow.duration",
}
ALWAYS = {"gen_ai.invoke_agent.duration", "gen_ai.execute_tool.duration"}

Points = Mapping[str, list[NumberDataPoint | HistogramDataPoint]]


def points_of(reader: InMemoryMetricReader) -> Points:
    """What was recorded, by the metric's name."""
    data = reader.get_metrics_data()
    assert data is not None
    metrics = [metric for resource in data.resource_metrics for scope in resource.scope_metrics for metric in scope.metrics]
    return {metric.name: list(metric.data.data_points) for metric in metrics}  # type: ignore[arg-type]  # none is exponential


@pytest.mark.parametrize(("names", "expected"), [("current", INFERENCE), ("older", OLDER), ("both", INFERENCE | OLDER)])
async def test_metrics_have_the_names_that_are_asked_for(names: str, expected: set[str]) -> None:
    reader = InMemoryMetricReader()
    async with hybrid([LOOKUP, ("Mira", " Falk")], []) as agents:
        instrument(agents, meter_provider=MeterProvider([reader]), metric_names=names)  # type: ignore[arg-type]  # a parameter of the test
        await agents.run("Who leads Orbix Labs?", strategy="device")
    assert points_of(reader).keys() == expected | ALWAYS


async def test_counted_tokens_are_those_of_the_calls() -> None:
    reader = InMemoryMetricReader()
    async with hybrid([LOOKUP, "Tomas Berg"], [LOOKUP, "Mira Falk"]) as agents:
        instrument(agents, meter_provider=MeterProvider([reader]))
        result = await agents.run("Who leads Orbix Labs?", strategy="cascade")
    points = points_of(reader)
    counted = sum(point.value for point in points["gen_ai.client.inference.usage.input_tokens"] if isinstance(point, NumberDataPoint))
    assert counted == sum(call.usage.input_tokens for call in result.calls)
    steps = [point.count for point in points["gen_ai.client.inference.duration"] if isinstance(point, HistogramDataPoint)]
    assert sum(steps) == len(result.calls)


async def test_a_step_that_failed_counts_no_tokens_and_names_its_error() -> None:
    reader = InMemoryMetricReader()
    async with hybrid([Unavailable("gone")], []) as agents:
        instrument(agents, meter_provider=MeterProvider([reader]))
        with pytest.raises(Unavailable):
            await agents.run("Who?", strategy="device")
    points = points_of(reader)
    (tokens,) = points["gen_ai.client.inference.usage.input_tokens"]
    assert isinstance(tokens, NumberDataPoint)
    assert tokens.attributes is not None
    assert (tokens.value, tokens.attributes["gen_ai.token.modality"]) == (0, "unknown")
    for name in ("gen_ai.client.inference.duration", "gen_ai.invoke_agent.duration", "gen_ai.invoke_workflow.duration"):
        (duration,) = points[name]
        assert duration.attributes is not None
        assert duration.attributes["error.type"] == "Unavailable"


def read(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """The samples of a page of metrics."""
    samples = [sample for family in parser.text_string_to_metric_families(text) for sample in family.samples]
    found = {(sample.name, frozenset(sample.labels.items())): sample.value for sample in samples}
    assert len(found) == len(samples), "two samples have one name and the same labels"
    return found


def value(text: str, name: str, **labels: str) -> float | None:
    """One sample; None: there is none."""
    return read(text).get((name, frozenset(labels.items())))


async def test_a_page_of_metrics_tells_what_runs_took() -> None:
    async with hybrid([LOOKUP, "Tomas Berg"], [LOOKUP, "Mira Falk"]) as agents:
        metrics = agents.metrics
        result = await agents.run("Who leads Orbix Labs?", strategy="cascade")
        text = await metrics.text()
    far = {"side": "far", "agent": "far", "model": "scripted"}
    assert value(text, "nearfar_runs_total", strategy="cascade", outcome="done", side="far") == 1
    assert value(text, "nearfar_attempts_total", strategy="cascade", side="near", agent="near", outcome="rejected") == 1
    assert value(text, "nearfar_escalations_total", strategy="cascade", side="near", agent="near", reason="ungrounded") == 1
    assert value(text, "nearfar_tokens_total", **far, kind="input") == result.far.usage.input_tokens
    assert value(text, "nearfar_dollars_total", **far) == pytest.approx(float(result.far.dollars or 0))
    assert value(text, "nearfar_first_token_seconds_count", **far) == 2
    assert value(text, "nearfar_run_seconds_count", strategy="cascade", outcome="done") == 1
    assert value(text, "nearfar_breaker_state", agent="near", state="closed") == 1
    assert value(text, "nearfar_approvals_waiting") == 0
    assert value(text, "nearfar_workers_attached") == 0


async def test_a_thousand_runs_of_a_thousand_users_add_no_series() -> None:
    near = ScriptedAgent(lambda _: "ok", name="near", prices=FREE, confidence=0.9)
    reader = InMemoryMetricReader()
    async with Hybrid(near=near, policy=PUBLIC) as agents:
        metrics = agents.metrics
        instrument(agents, meter_provider=MeterProvider([reader]))
        await agents.run("Hi", strategy="device")
        before, exported = read(await metrics.text()).keys(), {name: len(points) for name, points in points_of(reader).items()}
        for number in range(1000):
            await agents.run(f"Say {number}.", strategy="device", user=f"user {number}", session=f"s{number}", idempotency_key=f"r{number}")
        text = await metrics.text()
    assert read(text).keys() == before
    assert {name: len(points) for name, points in points_of(reader).items()} == exported
    assert value(text, "nearfar_runs_total", strategy="device", outcome="done", side="near") == 1001


async def test_names_that_hold_quotes_are_escaped() -> None:
    near = ScriptedAgent(["ok"], name="near", model='a "model"\\with\nlines', prices=FREE)
    async with Hybrid(near=near) as agents:
        metrics = agents.metrics
        await agents.run("Hi", strategy="device")
        text = await metrics.text()
    assert value(text, "nearfar_dollars_total", side="near", agent="near", model='a "model"\\with\nlines') == 0


async def test_answers_of_the_cache_are_hits_and_savings(tmp_path: Path) -> None:
    far = ScriptedAgent(lambda _: "Mira Falk", name="far", side=Side.FAR, prices=PAID)
    async with Hybrid(far=far, policy=PUBLIC, records=Records(cache=CacheConfig(path=tmp_path / "cache.db"))) as agents:
        metrics = agents.metrics
        for _ in range(2):
            await agents.run("Who leads Orbix Labs?", strategy="cloud")
        text = await metrics.text()
    assert value(text, "nearfar_cache_hits_total", side="far", agent="far") == 1
    assert value(text, "nearfar_saved_dollars", by="cache") == value(
        text, "nearfar_dollars_total", side="far", agent="far", model="scripted"
    )


async def test_what_the_limits_of_the_day_leave_is_told() -> None:
    far = ScriptedAgent(["Mira Falk"], name="far", side=Side.FAR, prices=PAID)
    policy = PUBLIC.model_copy(update={"limits": LimitsConfig(day=AmountsConfig(dollars=1.0))})
    async with Hybrid(far=far, policy=policy) as agents:
        metrics = agents.metrics
        result = await agents.run("Who leads Orbix Labs?", strategy="cloud")
        text = await metrics.text()
    assert value(text, "nearfar_budget_remaining_dollars") == pytest.approx(1.0 - float(result.far.dollars or 0), abs=1e-5)
    assert value(text, "nearfar_budget_remaining_tokens") is None


async def test_an_open_breaker_is_told() -> None:
    near = ScriptedAgent(lambda _: Unavailable("gone"), name="near")
    async with Hybrid(near=near) as agents:
        metrics = agents.metrics
        for _ in range(5):
            with pytest.raises(Unavailable):
                await agents.run("Hi", strategy="device")
        text = await metrics.text()
    states = {state: value(text, "nearfar_breaker_state", agent="near", state=state) for state in ("closed", "open", "half_open")}
    assert states == {"closed": 0, "open": 1, "half_open": 0}


async def test_a_request_that_may_not_leave_is_counted() -> None:
    read_mail = ToolCall(id="1", name="read_mail", arguments={"subject": "vault"})
    policy = Policy.model_validate({"sensitivity": "public", "privacy": {"placeholders": False}})
    async with hybrid([], [read_mail, "at nine"]) as agents:
        metrics = agents.metrics
        with pytest.raises(PrivacyViolation):
            await agents.run("When?", strategy="cloud", mode="only_in_cloud", policy=policy)
        text = await metrics.text()
    assert value(text, "nearfar_egress_blocked_total", agent="far", role="execute") == 1


async def test_runs_that_wait_for_an_approval_are_told(tmp_path: Path) -> None:
    @tool(effect="idempotent", approval=True)
    async def delete_note(title: str) -> str:
        """Delete a note."""
        return "deleted"

    call = ToolCall(id="1", name="delete_note", arguments={"title": "old"})
    near = ScriptedAgent([call], name="near")
    async with Hybrid(near=near, tools=[delete_note], records=tmp_path / "runs") as agents:
        metrics = agents.metrics
        with pytest.raises(ApprovalNeeded):
            await agents.run("Delete the old note.", strategy="device")
        text = await metrics.text()
    assert value(text, "nearfar_approvals_waiting") == 1
    assert value(text, "nearfar_runs_total", strategy="device", outcome="waiting", side="") == 1
