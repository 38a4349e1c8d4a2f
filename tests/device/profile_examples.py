"""Profiles to keep and to look for."""

from datetime import UTC, datetime
from pathlib import Path

from nearfar.device.profiles import Profile, PromptPace, model_files, this_device
from nearfar.protocols import EnergySource, Execution


def profile(
    model: Path, *, provider: str = "cpu", decode: float = 50.0, watts: float | None = 10.0, device: str = "", card: str = ""
) -> Profile:
    """Of a model that reads 64 tokens at 1000 a second and 1024 tokens at 500."""
    return Profile(
        device=device or this_device(),
        model=model_files(model),
        execution=Execution(engine="llama.cpp", provider=provider, device=card),
        measured_at=datetime.now(UTC),
        prompts=(
            PromptPace(prompt_tokens=64, prefill_tokens_per_second=1000.0, first_token_seconds=0.064),
            PromptPace(prompt_tokens=1024, prefill_tokens_per_second=500.0, first_token_seconds=2.048),
        ),
        decode_tokens_per_second=decode,
        load_seconds=1.0,
        memory_bytes=1 << 30,
        watts=watts,
        watts_source=EnergySource.UNAVAILABLE if watts is None else EnergySource.ESTIMATED,
    )
