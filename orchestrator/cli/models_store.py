"""`nearfar models list | pull | add | verify | rm`."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.table import Table
from rich.text import Text
from typer import Exit

from ..compose.agents import EMBEDDED, model_path, model_store
from .console import EXIT_FAILED, notes, output, print_json, reported

if TYPE_CHECKING:
    from ..compose.agents import StoredModel


def list_models(*, as_json: bool) -> None:
    """Print the models by name."""
    with reported(as_json=as_json):
        stored = model_store().models()
        shipped = [(name, model_path(name)) for name in EMBEDDED]
        if as_json:
            ours = [{"name": name, "path": str(path), "bytes": path.stat().st_size, "source": "nearfar"} for name, path in shipped]
            print_json({"models": ours + [{**_described(model), "obstacle": model.obstacle} for model in stored]})
            return
        table = Table(box=SIMPLE_HEAD)
        for column in ("name", "size", "source", "state"):
            table.add_column(column, overflow="fold")
        for name, path in shipped:
            table.add_row(name, _size(path.stat().st_size), "ships with nearfar", "")
        for model in stored:
            table.add_row(model.name, _size(model.bytes), model.source, Text(model.obstacle, style="red"))
        output.print(table)


def pull_model(reference: str, *, name: str | None, revision: str, sha256: str | None, as_json: bool) -> None:
    """Fetch a model and print its name."""
    with reported(as_json=as_json), _progress(shown=not as_json) as progress:
        model = model_store().pull(reference, name=name, revision=revision, sha256=sha256, progress=progress)
    _print_usable(model, as_json=as_json)


def add_model(path: Path, *, name: str | None, sha256: str | None, as_json: bool) -> None:
    """Register a model and print its name."""
    with reported(as_json=as_json), _progress(shown=not as_json) as progress:
        model = model_store().add(path, name=name, sha256=sha256, progress=progress)
    _print_usable(model, as_json=as_json)


def verify_models(names: Sequence[str], *, as_json: bool) -> None:
    """Print what a second look found; exit with an error where a model is not what it was."""
    with reported(as_json=as_json), _progress(shown=not as_json) as progress:
        verdicts = model_store().verify(names, progress=progress)
    if as_json:
        print_json({"models": [{**_described(verdict.model), "fault": verdict.fault} for verdict in verdicts]})
    for verdict in () if as_json else verdicts:
        found = Text.assemble(("in quarantine", "red"), f": {verdict.fault}") if verdict.fault else Text("ok", style="green")
        output.print(Text.assemble(f"{verdict.model.name:<32} ", found), soft_wrap=True)
    if any(verdict.fault for verdict in verdicts):
        raise Exit(EXIT_FAILED)


def remove_model(name: str, *, as_json: bool) -> None:
    """Forget a model and print what became of its files."""
    with reported(as_json=as_json):
        model = model_store().remove(name)
    if as_json:
        print_json({**_described(model), "deleted": model.owned})
    else:
        output.print(f"{model.name} is forgotten" + (" and deleted" if model.owned else f"; {model.path} stays"), soft_wrap=True)


def _print_usable(model: "StoredModel", *, as_json: bool) -> None:
    if as_json:
        print_json(_described(model))
    else:
        output.print(
            f'{model.name}  {_size(model.bytes)}, to be used as [near] model = "{model.name}"',
            soft_wrap=True,
        )


def _described(model: "StoredModel") -> dict[str, object]:
    return {**model.model_dump(mode="json"), "bytes": model.bytes}


def _size(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


@contextmanager
def _progress(*, shown: bool) -> Iterator[Callable[[str, int, int], None]]:
    """A bar for each thing that is done, while the block runs."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=notes, transient=True, disable=not shown) as bars:
        tasks = {}

        def tell(title: str, done: int, total: int) -> None:
            if title not in tasks:
                tasks[title] = bars.add_task(title, total=total)
            bars.update(tasks[title], completed=done)

        yield tell
