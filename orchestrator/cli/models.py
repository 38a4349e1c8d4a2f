"""`nearfar models`: list, fetch and check the models of this device, and see which fit and how fast they are."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from pydantic import ValidationError
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Column
from rich.text import Text

from ...protocols import ConfigError
from ..compose import EMBEDDED, NearConfig, model_fits, model_path, model_store
from ..compose import bench_model as measure
from . import options
from .running import EXIT_FAILED, Line, Note, asynchronous, notes, report_errors, right, show, table

if TYPE_CHECKING:
    from ..compose import ModelFit, Profile, StoredModel

_STYLES: Final = {"fits": "green", "tight": "yellow", "too large": "red", "unknown": "yellow"}

Name = Annotated[str | None, typer.Option(help="Name for the model. Default: the name of its file.")]
Sha256 = Annotated[str | None, typer.Option("--sha256", help="Checksum that the file must have.")]

app = typer.Typer(no_args_is_help=True)


@app.command("list")
def list_models(as_json: options.AsJson = False) -> None:
    """List the models on this device by the names that a configuration may use."""
    with report_errors(as_json=as_json):
        stored = model_store().models()
        shipped = [(name, model_path(name)) for name in EMBEDDED]
        ours = [{"name": name, "path": str(path), "bytes": path.stat().st_size, "source": "nearfar"} for name, path in shipped]
        rows: list[Sequence[str | Text]] = [(name, _size(path.stat().st_size), "ships with nearfar", "") for name, path in shipped]
        rows += [(model.name, _size(model.bytes), model.source, Text(model.obstacle, style="red")) for model in stored]
        columns = [Column(name, overflow="fold") for name in ("name", "size", "source", "state")]
        data = {"models": ours + [{**_describe(model), "obstacle": model.obstacle} for model in stored]}
        show(data, [table(columns, rows)], as_json=as_json)


@app.command("pull")
def pull_model(
    reference: Annotated[str, typer.Argument(help="hf:OWNER/REPOSITORY:QUANT, or :FILE.gguf.")],
    name: Name = None,
    revision: Annotated[str, typer.Option(help="Branch, tag or commit of the repository.")] = "main",
    sha256: Sha256 = None,
    as_json: options.AsJson = False,
) -> None:
    """Fetch a model from Hugging Face. An interrupted download continues where it stopped."""
    with report_errors(as_json=as_json), show_progress(shown=not as_json) as progress:
        model = model_store().pull(reference, name=name, revision=revision, sha256=sha256, progress=progress)
    _show_usable(model, as_json=as_json)


@app.command("web")
def fetch_web_engine(
    archives: Annotated[Path | None, typer.Option(help="Folder with the archives of `npm pack`, for machines without a network.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Fetch wllama (10 MB), which runs models in browsers for `nearfar serve hub --web`. Its checksum is pinned."""
    from ..compose.hub import fetch_engine

    with report_errors(as_json=as_json), show_progress(shown=not as_json) as progress:
        folder = fetch_engine(progress, archives)
    show({"folder": str(folder)}, [f"wllama is in {folder}"], as_json=as_json)


@app.command("add")
def add_model(
    path: Annotated[Path, typer.Argument(help="A .gguf file, or a folder for onnxruntime-genai. It stays where it is.")],
    name: Name = None,
    sha256: Sha256 = None,
    as_json: options.AsJson = False,
) -> None:
    """Check a model that is on this device already, and give it a name."""
    with report_errors(as_json=as_json), show_progress(shown=not as_json) as progress:
        model = model_store().add(path, name=name, sha256=sha256, progress=progress)
    _show_usable(model, as_json=as_json)


@app.command("verify")
def verify_models(
    names: Annotated[list[str] | None, typer.Argument(help="Names of models. Default: all.", show_default=False)] = None,
    as_json: options.AsJson = False,
) -> None:
    """Check the checksums of models again. A model that fails is put into quarantine and is not loaded."""
    with report_errors(as_json=as_json), show_progress(shown=not as_json) as progress:
        verdicts = model_store().verify(names or (), progress=progress)
    lines: list[Line] = [] if verdicts else [Note("no model is stored; nearfar models pull gets one", style="")]
    for verdict in verdicts:
        found = Text.assemble(("in quarantine", "red"), f": {verdict.fault}") if verdict.fault else Text("ok", style="green")
        lines.append(Text.assemble(f"{verdict.model.name:<32} ", found))
    show({"models": [{**_describe(verdict.model), "fault": verdict.fault} for verdict in verdicts]}, lines, as_json=as_json)
    if any(verdict.fault for verdict in verdicts):
        raise typer.Exit(EXIT_FAILED)


@app.command("rm")
def remove_model(name: Annotated[str, typer.Argument(help="A model's name.")], as_json: options.AsJson = False) -> None:
    """Forget a model, and delete its files if `pull` fetched them."""
    with report_errors(as_json=as_json):
        model = model_store().remove(name)
    told = f"{model.name} is forgotten" + (" and deleted" if model.owned else f"; {model.path} stays")
    show({**_describe(model), "deleted": model.owned}, [told], as_json=as_json)


@app.command("fit")
def fit_models(
    model: Annotated[str | None, typer.Argument(help="A name, a .gguf file, or hf:OWNER/REPOSITORY. Default: all on this device.")] = None,
    context: Annotated[int | None, typer.Option(min=1, help="Tokens of one step, prompt and output together.")] = None,
    parallel: Annotated[int, typer.Option(min=1, max=64, help="Number of steps that are decoded at the same time.")] = 4,
    as_json: options.AsJson = False,
) -> None:
    """Show how much memory models need for a few context lengths, and which fit."""
    with report_errors(as_json=as_json):
        found = model_fits(model, context=context, parallel=parallel)
    free = {"free_bytes": found.free_bytes, "parallel": parallel}
    data = {**free, "fits": [_describe_fit(fit) for fit in found.fits], "largest_contexts": found.largest_contexts}
    free_memory = "an unknown amount" if found.free_bytes is None else _size(found.free_bytes)
    columns = (Column("model", overflow="fold"), *(Column(name, justify="right", no_wrap=True) for name in _FIT_COLUMNS))
    lines: list[Line] = [
        f"{free_memory} of memory is free; each model is loaded for {parallel} steps at the same time",
        table(columns, map(_fit_cells, found.fits)),
        *(f"{name}: {_largest_text(tokens, found.free_bytes)}" for name, tokens in found.largest_contexts.items()),
    ]
    show(data, lines, as_json=as_json)


@app.command("bench")
@asynchronous
async def bench_model(
    model: Annotated[str, typer.Argument(help="A name from `nearfar models list`, or the path of a model.")] = "near",
    compute: Annotated[str, typer.Option(help="Processor: fastest, lowest_power, or a provider such as cpu or cuda.")] = "fastest",
    watts: Annotated[
        float | None, typer.Option(min=0.001, max=100_000, help="Power of this device while it computes, if nothing measures it.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Measure the speed and power of a model on this device. The router uses the figures."""
    columns = (TextColumn("measuring {task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=notes, disable=as_json) as shown:
        line = shown.add_task(model, total=None)
        profile, path = await measure(
            _near_config(model, compute), watts=watts, progress=lambda done, total: shown.update(line, completed=done, total=total)
        )
    show({**profile.model_dump(mode="json"), "path": str(path)}, _bench_lines(model, profile, path), as_json=as_json)


def _show_usable(model: "StoredModel", *, as_json: bool) -> None:
    told = f'{model.name}  {_size(model.bytes)}; use it with [near] model = "{model.name}"'
    show(_describe(model), [told], as_json=as_json)


def _describe(model: "StoredModel") -> dict[str, object]:
    return {**model.model_dump(mode="json"), "bytes": model.bytes}


def _size(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


@contextmanager
def show_progress(*, shown: bool) -> Iterator[Callable[[str, int, int], None]]:
    """Yield a function that shows a bar for each title, with the bytes done and in total."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=notes, transient=True, disable=not shown) as bars:
        tasks = {}

        def tell(title: str, done: int, total: int) -> None:
            if title not in tasks:
                tasks[title] = bars.add_task(title, total=total)
            bars.update(tasks[title], completed=done)

        yield tell


_FIT_COLUMNS: Final = ("context", "weights", "cache", "the rest", "all", "")


def _fit_cells(fit: "ModelFit") -> tuple[str | Text, ...]:
    parts = fit.footprint
    sizes = (parts.weights, parts.cache, parts.total - parts.weights - parts.cache, parts.total)
    return (fit.name, str(fit.context_tokens), *map(_size, sizes), Text(fit.verdict, style=_STYLES[fit.verdict]))


def _largest_text(tokens: int | None, free: int | None) -> str:
    if free is None:
        return "unknown whether it fits"
    return f"at most a context of {tokens} tokens" if tokens else "does not fit"


def _describe_fit(fit: "ModelFit") -> dict[str, object]:
    sizes = {f"{part}_bytes": size for part, size in asdict(fit.footprint).items()}
    return {"name": fit.name, "context_tokens": fit.context_tokens, **sizes, "bytes": fit.footprint.total, "verdict": fit.verdict}


def _near_config(model: str, compute: str) -> NearConfig:
    try:
        return NearConfig(model=model, compute=compute)
    except ValidationError as error:
        hint = "use fastest, lowest_power, or a provider that `nearfar doctor` lists"
        raise ConfigError(f"there is no provider {compute!r} to compute on", hint=hint) from error


def _bench_lines(model: str, profile: "Profile", path: Path) -> Iterator[Line]:
    ran = profile.execution
    offloaded = f", {ran.offloaded_layers} of {ran.layers} layers offloaded" if ran.offloaded_layers else ""
    yield f"{model} by {ran.engine} on {ran.provider}, {ran.device or profile.device}{offloaded}"
    yield table(
        right("prompt tokens", "prompt tokens/s", "first token"),
        (
            (str(pace.prompt_tokens), f"{pace.prefill_tokens_per_second:.0f}", f"{1000 * pace.first_token_seconds:.0f} ms")
            for pace in profile.prompts
        ),
    )
    cache = "unknown" if profile.kv_bytes_per_token is None else f"{profile.kv_bytes_per_token / 1024:.1f} KiB per token"
    power = "unknown; give it with --watts" if profile.watts is None else f"{profile.watts:.1f} W, {profile.watts_source}"
    per_token = "" if profile.watts is None else f"; {profile.watts / profile.decode_tokens_per_second:.3g} J per output token"
    facts = {
        "output": f"{profile.decode_tokens_per_second:.1f} tokens/s",
        "power": power + per_token,
        "load": f"{profile.load_seconds:.1f} s",
        "memory": f"{profile.memory_bytes / 1e6:.0f} MB",
        "cache": cache,
    }
    for name, value in facts.items():
        yield f"{name:>8}  {value}"
    yield Text(f"kept in {path}", style="dim")
