"""Metrics by OpenTelemetry's semantic conventions for generative AI. No attribute names a user, a prompt or a run."""

from typing import TYPE_CHECKING, Final, Literal

from ..task.results import Attempt
from .observing import EndedRun, EndedStep, EndedTool

if TYPE_CHECKING:
    from opentelemetry.metrics import Histogram
    from opentelemetry.metrics import Meter as MeterOfOtel

_SECONDS: Final = [0.01 * 2**power for power in range(14)]
_TOKENS: Final = [4**power for power in range(14)]
_Attributes = dict[str, str | int]


class OtelMeter:
    """Records steps, attempts, tool calls and runs in instruments of OpenTelemetry, under current or older names, or both."""

    def __init__(self, meter: "MeterOfOtel", names: Literal["current", "older", "both"]) -> None:
        self._meter = meter
        self._current = names != "older"
        self._older = names != "current"
        inference = [*(["gen_ai.client.inference"] if self._current else []), *(["gen_ai.client.operation"] if self._older else [])]
        self._durations = [self._seconds(f"{prefix}.duration") for prefix in inference]
        self._first_chunks = [self._seconds(f"{prefix}.time_to_first_chunk") for prefix in inference]
        self._chunks = [self._seconds(f"{prefix}.time_per_output_chunk") for prefix in inference]
        workflows = [*(["gen_ai.invoke_workflow"] if self._current else []), *(["gen_ai.workflow"] if self._older else [])]
        self._workflows = [self._seconds(f"{prefix}.duration") for prefix in workflows]
        self._agents = self._seconds("gen_ai.invoke_agent.duration")
        self._tools = self._seconds("gen_ai.execute_tool.duration")
        kinds = ("input_tokens", "output_tokens")
        self._per_step = {kind: self._tokens(f"gen_ai.client.inference.operation.{kind}") for kind in kinds if self._current}
        used = (*kinds, "cache_read.input_tokens", "cache_write.input_tokens", "reasoning.output_tokens")
        self._used = {kind: meter.create_counter(f"gen_ai.client.inference.usage.{kind}", unit="{token}") for kind in used if self._current}
        self._usage = self._tokens("gen_ai.client.token.usage") if self._older else None

    def step_ended(self, step: EndedStep) -> None:
        """Record the time and the tokens of a step."""
        asked, call = step.asked, step.call
        attributes: _Attributes = {"gen_ai.operation.name": "chat", "gen_ai.provider.name": asked.card.provider or "nearfar"}
        attributes |= {"gen_ai.request.model": asked.card.model}
        if asked.server is not None:
            attributes["server.address"], attributes["server.port"] = asked.server
        failed = {} if call.error is None else {"error.type": call.error}
        for duration in self._durations:
            duration.record(call.seconds, {**attributes, **failed})
        if call.first_token_seconds is not None:
            for first in self._first_chunks:
                first.record(call.first_token_seconds, attributes)
        for chunk in self._chunks:
            for seconds in step.gaps:
                chunk.record(seconds, attributes)
        self._count(step, attributes)

    def attempt_ended(self, attempt: Attempt, strategy: str) -> None:
        """Record the time of an attempt."""
        attributes: _Attributes = {"gen_ai.agent.name": attempt.agent}
        attributes |= {} if attempt.error is None else {"error.type": attempt.error}
        self._agents.record(attempt.seconds, attributes)

    def escalated(self, attempt: Attempt, strategy: str) -> None:
        """Do nothing: the conventions have no metric for it."""

    def egress_blocked(self, agent: str, role: str) -> None:
        """Do nothing: the conventions have no metric for it."""

    def tool_ended(self, tool: EndedTool) -> None:
        """Record the time of a tool call."""
        failed = {"error.type": "tool_error"} if tool.result.is_error else {}
        self._tools.record(tool.seconds, {"gen_ai.tool.name": tool.call.name, "gen_ai.tool.type": "function", **failed})

    def run_ended(self, run: EndedRun) -> None:
        """Record the time of a run."""
        attributes = {"gen_ai.workflow.name": run.task.policy.strategy.value}
        attributes |= {} if run.error_class is None else {"error.type": run.error_class}
        for workflow in self._workflows:
            workflow.record(run.seconds, attributes)

    def _count(self, step: EndedStep, attributes: _Attributes) -> None:
        """Count the tokens of a step. Of one that failed nothing is known, and 0 is counted as the conventions want it."""
        usage = step.call.usage
        counts = {
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
            "cache_read.input_tokens": usage.cached_tokens,
            "cache_write.input_tokens": usage.cache_write_tokens,
            "reasoning.output_tokens": usage.reasoning_tokens,
        }
        modality = "unknown" if step.finish is None else "text"
        for kind, counter in self._used.items():
            counter.add(counts[kind], {**attributes, "gen_ai.token.modality": modality})
        if step.finish is None:
            return
        for kind, histogram in self._per_step.items():
            histogram.record(counts[kind], attributes)
        if self._usage is not None:
            self._usage.record(usage.input_tokens, {**attributes, "gen_ai.token.type": "input"})
            self._usage.record(usage.output_tokens, {**attributes, "gen_ai.token.type": "output"})

    def _seconds(self, name: str) -> "Histogram":
        return self._meter.create_histogram(name, unit="s", explicit_bucket_boundaries_advisory=_SECONDS)

    def _tokens(self, name: str) -> "Histogram":
        return self._meter.create_histogram(name, unit="{token}", explicit_bucket_boundaries_advisory=_TOKENS)
