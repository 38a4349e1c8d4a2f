"""Read the recorded outcomes that `policy simulate`, `policy calibrate` and `router train` work on."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from ...protocols import ConfigError, Side
from .options import read_config
from .printing import notes, warn

if TYPE_CHECKING:
    from ..routing.traces import Trace
    from ..util.embedding.embedder import Embedder

Traces = Annotated[Path, typer.Option("--traces", help="Recorded outcomes: traces, a router's log, or the runs of a sweep.")]
NearAgents = Annotated[
    list[str] | None, typer.Option("--near-agent", help="Agent of the traces that is near. May be repeated. Default: as configured.")
]
FarAgents = Annotated[list[str] | None, typer.Option("--far-agent", help="Agent of the traces that is far. May be repeated.")]
WordsOnly = Annotated[bool, typer.Option("--words-only", help="Compare prompts by their words and not by their meaning, which is faster.")]
Seed = Annotated[int, typer.Option(help="Seed that divides the traces into parts.")]


@dataclass(frozen=True, slots=True)
class Recorded:
    """The recorded outcomes that a command works on."""

    traces: Path
    near: Sequence[str]
    """Names of the near agents in the traces; if `near` and `far` are empty, the configuration tells the sides."""
    far: Sequence[str]
    config: Path | None
    embeds: bool
    """True to compare prompts by their meaning, too."""
    seed: int

    def read(self) -> "tuple[list[Trace], dict[str, Side]]":
        """Return the traces, and the side of each agent that takes part. Raises `ConfigError` if a side has no agent."""
        from ..routing.traces import agents_of, read_traces

        traces = read_traces(self.traces)
        told = agents_of(traces)
        known = self._named(told) or self._configured()
        sides = {agent: known[agent] for agent in told if agent in known}
        lacking = sorted(set(Side) - set(sides.values()))
        if lacking:
            hint = f"the traces have {', '.join(told)}: name yours with --near-agent and --far-agent"
            raise ConfigError(f"the traces have no {lacking[0]} agent that is known", hint=hint)
        return traces, sides

    def _named(self, told: Sequence[str]) -> Mapping[str, Side]:
        both = sorted(set(self.near) & set(self.far))
        if both:
            raise ConfigError(f"{both[0]} is named for both sides", hint="an agent is near or far")
        named = {**dict.fromkeys(self.near, Side.NEAR), **dict.fromkeys(self.far, Side.FAR)}
        unknown = [agent for agent in named if agent not in told]
        if unknown:
            raise ConfigError(f"the traces have no agent {unknown[0]!r}", hint=f"they have {', '.join(told)}")
        return named

    def _configured(self) -> Mapping[str, Side]:
        config = read_config(self.config)
        return ({} if config is None else config.agents) or {str(side): side for side in Side}

    def embedder(self) -> "Embedder | None":
        """Return the model that embeds prompts; None to compare them by their words alone."""
        if not self.embeds:
            return None
        if find_spec("onnxruntime") is None or find_spec("tokenizers") is None:
            warn("prompts are compared by their words alone; to compare their meaning: pip install 'nearfar[router]'")
            return None
        from ..util.embedding.embedder import Embedder

        return Embedder()


@contextmanager
def show_progress() -> Iterator[Callable[[str], None]]:
    """Yield a function that shows on standard error the work that is being done, with the time it takes."""
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=notes, transient=True) as progress:
        line = progress.add_task("reading ...", total=None)
        yield lambda text: progress.update(line, description=f"{text} ...")
