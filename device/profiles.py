"""Profiles: the measured speed and power of a model on this device.

`nearfar models bench` measures and saves them. The router predicts seconds and joules from them before an agent has taken a step,
`fastest` chooses a processor by them, and a worker estimates the energy that no reader measures.
"""

import hashlib
import json
import logging
import os
from collections.abc import Iterator, Mapping
from math import log
from pathlib import Path
from typing import Final
from uuid import uuid4

from pydantic import AwareDatetime, Field, ValidationError

from ..protocols import EnergySource, Execution
from ..protocols.steps import Value
from .compute import CPU
from .hardware.processors import read_cpu

logger = logging.getLogger(__name__)

_KEY_LENGTH: Final = 12


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


def profiles_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return `profiles` below `NEARFAR_HOME`, else below the user's state folder as the XDG base directory specification names it."""
    if home := environment.get("NEARFAR_HOME"):
        return Path(home).expanduser() / "profiles"
    state = environment.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "nearfar" / "profiles"


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
    temporary = path.with_suffix(f".{uuid4().hex}")  # Another process may be saving the same one.
    try:
        temporary.write_text(json.dumps(profile.model_dump(mode="json"), indent=1), encoding="utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
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
