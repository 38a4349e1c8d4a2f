"""Measures a model on this device: prompts of several lengths, a few tokens of output each, and the power meanwhile."""

import statistics
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import cycle, islice
from pathlib import Path
from typing import Final

import anyio

from ..protocols import EnergySource, Execution, Finished, Message, ModelError, Performance, StepRequest, ToolChoice, ToolSpec, complete
from .compute import CPU
from .energy import EnergyInterval, Meter, open_reader
from .profiles import Profile, PromptPace, model_files, this_device
from .worker import LocalAgent

Progress = Callable[[int, int], None]
"""Is told how many steps out of how many are done."""

LENGTHS: Final = (64, 256, 1024)
"""Tokens of the prompts, about; those that the model's context cannot hold are left out."""
REPEATS: Final = 3
OUTPUT_TOKENS: Final = 32
_LEAST_OUTPUT: Final = 4
"""Tokens from which on a step tells how fast output goes."""
_SAMPLE_WORDS: Final = 20
_WORDS: Final = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
WATTS_PER_THREAD: Final = 6.0
"""Assumed where nothing measures: about what one busy core of a laptop takes, at 15 to 45 W for four to eight of them."""
_LONG_CALL: Final = ToolSpec(
    name="note",
    parameters={"type": "object", "properties": {"text": {"type": "string", "minLength": 1000}}, "required": ["text"]},
)


async def bench(load: Callable[[], Awaitable[LocalAgent]], path: Path, *, watts: float | None, progress: Progress) -> Profile:
    """Load a model, measure it, and close it again.

    Args:
        load: starts the agent whose model lies at `path`.
        watts: the device's power while it computes, where nothing measures it; None: assumed.

    Raises what loading raises, and `ModelError` for a model whose answers are too short to tell its speed.
    """
    begin = time.monotonic()
    async with await load() as agent:
        load_seconds = time.monotonic() - begin
        meter = _meter(agent.card.execution)
        laps: list[EnergyInterval] = []

        def stepped(done: int, total: int) -> None:
            if meter is not None:
                # A battery reports its power at the moment of a look: looks at both ends alone would count half of the time as idle.
                laps.append(meter.stop())
            progress(done, total)

        prompts, output_rate = await _measure(agent, stepped)
        memory = await anyio.to_thread.run_sync(_resident_bytes, (await agent.statistics()).process_id)
    execution = agent.card.execution
    if execution is None:
        raise ModelError(f"{path}: the engine does not report the processor it used", hint="update the engine's package")
    power, source = _power(execution, laps, meter, watts)
    return Profile(
        device=this_device(),
        model=await anyio.to_thread.run_sync(model_files, path),
        execution=execution,
        measured_at=datetime.now(UTC),
        prompts=prompts,
        decode_tokens_per_second=output_rate,
        kv_bytes_per_token=agent.card.kv_bytes_per_token,
        load_seconds=load_seconds,
        memory_bytes=memory,
        watts=power,
        watts_source=source,
    )


def _meter(execution: Execution | None) -> Meter | None:
    reader = open_reader(execution)
    if reader is None:
        return None
    meter = Meter(reader)
    meter.start()
    return meter


def _power(
    execution: Execution, laps: Sequence[EnergyInterval], meter: Meter | None, watts: float | None
) -> tuple[float | None, EnergySource]:
    """Return watts and their source: measured, else given by the user, else assumed for a CPU. Other processors have no assumed power."""
    drawn = _sum(laps)
    if meter is not None and drawn.seconds >= meter.least_seconds and drawn.watts:
        return drawn.watts, EnergySource.MEASURED
    if watts is None and execution.provider == CPU:
        watts = WATTS_PER_THREAD * (execution.threads or 1)
    return watts, EnergySource.UNAVAILABLE if watts is None else EnergySource.ESTIMATED


def _sum(laps: Sequence[EnergyInterval]) -> EnergyInterval:
    """Add the intervals up. The joules are unknown if those of any interval are."""
    known = [lap.joules for lap in laps if lap.joules is not None]
    return EnergyInterval(sum(lap.seconds for lap in laps), sum(known) if len(known) == len(laps) else None)


async def _measure(agent: LocalAgent, progress: Progress) -> tuple[tuple[PromptPace, ...], float]:
    """Measure the agent: return the paces of its prompts, from short to long, and its output tokens per second."""
    words = await _words_for(agent)
    lengths = list(_lengths(agent.card.limits.context_tokens))
    steps: list[list[Finished]] = []
    for length in lengths:
        steps.append([])
        for repeat in range(REPEATS):
            variant = len(steps) * REPEATS + repeat
            steps[-1].append(await _step(agent, words=words(length), variant=variant))
            progress(variant + 1 - REPEATS, len(lengths) * REPEATS)
    paces = sorted(map(_pace, steps), key=lambda pace: pace.prompt_tokens)
    return tuple(paces), await _output_rate(agent, [step for some in steps for step in some])


async def _words_for(agent: LocalAgent) -> Callable[[int], int]:
    """Return a function from prompt tokens to words. Two samples show how many tokens a word and the text around the words take."""
    few, more = [(await _step(agent, words=count, variant=0)).usage.input_tokens for count in (_SAMPLE_WORDS, 2 * _SAMPLE_WORDS)]
    per_word = (more - few) / _SAMPLE_WORDS
    around = 2 * few - more
    return lambda tokens: max(round((tokens - around) / per_word), 1)


async def _output_rate(agent: LocalAgent, steps: list[Finished]) -> float:
    """Return the median output rate of the steps that wrote enough to tell, or of steps that are forced to write a tool call."""
    if not (rates := _output_rates(steps)):
        rates = _output_rates([await _step(agent, words=_SAMPLE_WORDS, variant=repeat, forced=True) for repeat in range(REPEATS)])
    if not rates:
        raise ModelError(f"{agent.card.model} ends its answers too early to measure its speed", hint="bench a chat model")
    return statistics.median(rates)


def _output_rates(steps: list[Finished]) -> list[float]:
    told = (_performance(step).decode_tokens_per_second for step in steps if step.usage.output_tokens >= _LEAST_OUTPUT)
    return [rate for rate in told if rate is not None]


def _lengths(context_tokens: int | None) -> Iterator[int]:
    """Yield the prompt lengths that fit the context together with the text around them, and the shortest in any case."""
    for length in LENGTHS:
        if length == LENGTHS[0] or context_tokens is None or length + 2 * OUTPUT_TOKENS <= context_tokens:
            yield length


async def _step(agent: LocalAgent, *, words: int, variant: int, forced: bool = False) -> Finished:
    """Take one step on a prompt whose beginning no other prompt has, so that no prefix of it is in the cache.

    `forced`: make the model write a tool call that is longer than the output limit, which cuts it.
    """
    text = " ".join(islice(cycle(_WORDS), words))
    message = Message.user(f"{variant}. Go on counting, one number after the other: {text}")
    request = StepRequest(messages=(message,), max_output_tokens=OUTPUT_TOKENS)
    if forced:
        request = request.model_copy(update={"tools": (_LONG_CALL,), "tool_choice": ToolChoice.REQUIRED})
    return (await complete(agent, request)).finished


def _performance(step: Finished) -> Performance:
    assert step.performance is not None, "every agent on this machine measures its steps"
    return step.performance


def _pace(steps: list[Finished]) -> PromptPace:
    return PromptPace(
        prompt_tokens=round(statistics.median(step.usage.input_tokens for step in steps)),
        prefill_tokens_per_second=statistics.median(_performance(step).prefill_tokens_per_second or 0.0 for step in steps),
        first_token_seconds=statistics.median(_performance(step).first_token_seconds or 0.0 for step in steps),
    )


def _resident_bytes(process: int) -> int:
    import psutil

    return int(psutil.Process(process).memory_info().rss)
