"""`nearfar models bench`: what a model takes on this device."""

from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError
from rich.box import SIMPLE_HEAD
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from ...protocols import ConfigError
from ..compose.agents import NearConfig
from ..compose.agents import bench_model as bench
from .console import execute, notes, output, print_json

if TYPE_CHECKING:
    from ..compose.agents import Profile


def bench_model(model: str, *, compute: str, watts: float | None, as_json: bool) -> None:
    """Measure, keep the profile and print it."""

    async def work() -> None:
        columns = (TextColumn("measuring {task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=notes, disable=as_json) as shown:
            line = shown.add_task(model, total=None)
            profile, path = await bench(
                _config(model, compute), watts=watts, progress=lambda done, total: shown.update(line, completed=done, total=total)
            )
        if as_json:
            print_json({**profile.model_dump(mode="json"), "path": str(path)})
        else:
            _show(model, profile, path)

    execute(work(), as_json=as_json)


def _config(model: str, compute: str) -> NearConfig:
    try:
        return NearConfig(model=model, compute=compute)
    except ValidationError as error:
        hint = "fastest, lowest_power, or a provider that `nearfar doctor` lists"
        raise ConfigError(f"{compute!r} names nothing to compute on", hint=hint) from error


def _show(model: str, profile: "Profile", path: Path) -> None:
    ran = profile.execution
    offloaded = f", {ran.offloaded_layers} of {ran.layers} layers offloaded" if ran.offloaded_layers else ""
    where = f"{ran.provider}, {ran.device or profile.device}{offloaded}"
    output.print(f"{model} by {ran.engine} on {where}", soft_wrap=True)
    table = Table("prompt tokens", "prompt tokens/s", "first token", box=SIMPLE_HEAD)
    for pace in profile.prompts:
        table.add_row(str(pace.prompt_tokens), f"{pace.prefill_tokens_per_second:.0f}", f"{1000 * pace.first_token_seconds:.0f} ms")
    output.print(table)
    cache = "unknown" if profile.kv_bytes_per_token is None else f"{profile.kv_bytes_per_token / 1024:.1f} KiB per token"
    power = "unknown; give it with --watts" if profile.watts is None else f"{profile.watts:.1f} W, {profile.watts_source}"
    per_token = "" if profile.watts is None else f"; {profile.watts / profile.decode_tokens_per_second:.3g} J per output token"
    rows = {
        "output": f"{profile.decode_tokens_per_second:.1f} tokens/s",
        "power": power + per_token,
        "load": f"{profile.load_seconds:.1f} s",
        "memory": f"{profile.memory_bytes / 1e6:.0f} MB",
        "cache": cache,
    }
    for name, value in rows.items():
        output.print(f"{name:>8}  {value}", soft_wrap=True)
    output.print(f"kept in {path}", style="dim", soft_wrap=True)
