"""Profiles: the measured speed and power of a model on this device, and the bench that measures them.

`nearfar models bench` measures and saves them. The router predicts seconds and joules from them before an agent has taken a step,
`fastest` chooses a processor by them, and a worker estimates the energy that no reader measures.
"""

import hashlib
import json
import logging
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import cycle, islice
from math import log
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio
from pydantic import AwareDatetime, Field, ValidationError

from ..protocols import EnergySource, Execution, Finished, Message, ModelError, Performance, StepRequest, ToolChoice, ToolSpec, complete
from ..protocols.steps import Value
from ..protocols.system import replace_text, state_folder
from .energy import EnergyInterval, Measuring, Meter, open_reader
from .hardware.processors import CPU, read_cpu

if TYPE_CHECKING:
    from .worker import LocalAgent  # which reads profiles

logger = logging.getLogger(__name__)

_KEY_LENGTH: Final = 12
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


class ModelFiles(Value):
    """Which model it was: one file, or a folder of them."""

    path: str
    bytes: int
    modified_ns: int
    sha256: str


class PromptPace(Value):
    """The speed of prompts of one length."""

    prompt_tokens: int = Field(gt=0)
    prefill_tokens_per_second: float = Field(gt=0)
    first_token_seconds: float = Field(gt=0)


class Profile(Value):
    """One model on one device, run by one engine on one kind of processor."""

    device: str
    """Model and number of cores of the processor."""
    model: ModelFiles
    execution: Execution
    measured_at: AwareDatetime
    prompts: tuple[PromptPace, ...] = Field(min_length=1)
    """From short to long."""
    decode_tokens_per_second: float = Field(gt=0)
    kv_bytes_per_token: int | None = None
    load_seconds: float
    memory_bytes: int
    """Resident set of the worker process behind the longest prompt."""
    watts: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Power while it computed; None where `watts_source` is `unavailable`."""
    watts_source: EnergySource = EnergySource.UNAVAILABLE
    """`estimated`: assumed, or given by the user."""

    def first_token_seconds(self, prompt_tokens: int) -> float:
        """Predict the seconds until the first token of the output, by the prompts of the most similar length."""
        tokens = max(prompt_tokens, 1)
        nearest = min(self.prompts, key=lambda pace: abs(log(pace.prompt_tokens / tokens)))
        return prompt_tokens / nearest.prefill_tokens_per_second

    def seconds(self, prompt_tokens: int, output_tokens: float) -> float:
        """Predict the seconds of a whole step."""
        return self.first_token_seconds(prompt_tokens) + output_tokens / self.decode_tokens_per_second

    def joules(self, prompt_tokens: int, output_tokens: float) -> float | None:
        """Predict the joules of a whole step: power times time. None: the power is unknown."""
        return None if self.watts is None else self.watts * self.seconds(prompt_tokens, output_tokens)


def profiles_folder() -> Path:
    """Return the folder of the profiles that were measured on this device."""
    return state_folder() / "profiles"


def this_device() -> str:
    """Describe this device by model and number of cores of the processor, since the speed of a model depends on both."""
    cpu = read_cpu()
    return f"{cpu.model or cpu.architecture}, {cpu.logical_cores or cpu.usable_cores} cores"


def model_files(path: Path) -> ModelFiles:
    """Describe the model at a path by its size, time and checksum. All of it is read. Raises `OSError`."""
    size, modified = _stamp(path)
    return ModelFiles(path=str(path.resolve()), bytes=size, modified_ns=modified, sha256=_checksum(path))


def save_profile(profile: Profile, folder: Path | None = None) -> Path:
    """Keep a profile in place of an earlier one of the same model, device and processor. Raises `OSError`."""
    folder = folder or profiles_folder()
    folder.mkdir(parents=True, exist_ok=True)
    engine, provider, card = _processor(profile.execution)
    device = hashlib.sha256(f"{profile.device}\n{card}".encode()).hexdigest()
    path = folder / f"{profile.model.sha256[:_KEY_LENGTH]}-{engine}-{provider}-{device[:_KEY_LENGTH]}.json"
    replace_text(path, json.dumps(profile.model_dump(mode="json"), indent=1))
    return path


def profiles_of(path: Path, folder: Path | None = None) -> list[Profile]:
    """Return the profiles of a model on this device, the fastest first. A model that was moved is recognised by its checksum."""
    kept = list(_read_all(folder or profiles_folder()))
    if not kept or not path.exists():
        return []
    device, (size, modified) = this_device(), _stamp(path)
    found = [profile for profile in kept if profile.device == device and profile.model.bytes == size]
    unsure = [profile for profile in found if (profile.model.path, profile.model.modified_ns) != (str(path.resolve()), modified)]
    if unsure:
        checksum = _checksum(path)
        found = [profile for profile in found if profile not in unsure or profile.model.sha256 == checksum]
    return sorted(found, key=lambda profile: -profile.decode_tokens_per_second)


def profile_of(path: Path, execution: Execution | None) -> Profile | None:
    """Return the profile of a model on this device, measured with the same engine on the same processor."""
    if execution is None:
        return None
    return next((profile for profile in profiles_of(path) if _processor(profile.execution) == _processor(execution)), None)


def _processor(execution: Execution) -> tuple[str, str, str]:
    """Return engine, provider and name of the card: a measurement on one card says nothing of another. The CPU is in the profile's
    device."""
    return execution.engine, execution.provider, "" if execution.provider == CPU else execution.device


def speeds_of(path: Path) -> dict[str, float]:
    """Return a model's output tokens per second on this device, by provider; of several cards of one provider, those of the fastest."""
    return {profile.execution.provider: profile.decode_tokens_per_second for profile in reversed(profiles_of(path))}


def _read_all(folder: Path) -> Iterator[Profile]:
    for path in sorted(folder.glob("*.json")):
        try:
            yield Profile.model_validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            # Without a profile nothing fails; there are only no predictions.
            logger.warning("%s is not a profile and is ignored; delete it, or run `nearfar models bench` again: %s", path, error)


def _files(path: Path) -> list[Path]:
    return sorted(file for file in path.iterdir() if file.is_file()) if path.is_dir() else [path]


def _stamp(path: Path) -> tuple[int, int]:
    states = [file.stat() for file in _files(path)]
    return sum(state.st_size for state in states), max((state.st_mtime_ns for state in states), default=0)


def _checksum(path: Path) -> str:
    """Return the SHA-256 of a file, or of the list of a folder's file names and checksums."""
    if not path.is_dir():
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    sums = [(file.name, _checksum(file)) for file in _files(path)]
    return hashlib.sha256(repr(sums).encode()).hexdigest()


async def bench(load: "Callable[[], Awaitable[LocalAgent]]", path: Path, *, watts: float | None, progress: Progress) -> Profile:
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


async def _measure(agent: "LocalAgent", progress: Progress) -> tuple[tuple[PromptPace, ...], float]:
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


async def _words_for(agent: "LocalAgent") -> Callable[[int], int]:
    """Return a function from prompt tokens to words. Two samples show how many tokens a word and the text around the words take."""
    few, more = [(await _step(agent, words=count, variant=0)).usage.input_tokens for count in (_SAMPLE_WORDS, 2 * _SAMPLE_WORDS)]
    per_word = (more - few) / _SAMPLE_WORDS
    around = 2 * few - more
    return lambda tokens: max(round((tokens - around) / per_word), 1)


async def _output_rate(agent: "LocalAgent", steps: list[Finished]) -> float:
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


async def _step(agent: "LocalAgent", *, words: int, variant: int, forced: bool = False) -> Finished:
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


def measuring_of(path: Path, execution: Execution | None, *, kv_bytes_per_token: int | None) -> Measuring:
    """Return the measuring for the model at `path`, with the reader and the profile for this execution."""
    reader, profile = open_reader(execution), profile_of(path, execution)
    return Measuring(
        kv_bytes_per_token=kv_bytes_per_token,
        meter=None if reader is None else Meter(reader),
        estimate=None if profile is None else profile.joules,
    )
