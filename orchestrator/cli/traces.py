"""What the commands share that read recorded outcomes: which agents take part, and how far the work is."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from ...protocols import ConfigError, Side
from ..routing.traces import Trace, agents_of, read_traces
from ..util.embedding.embedder import Embedder
from .configuration import read_config
from .console import notes, warn


@dataclass(frozen=True, slots=True)
class Recorded:
    """Which recorded outcomes a command works on."""

    traces: Path
    near: Sequence[str]
    """Names of the near agents in the traces; none: as the configuration has it."""
    far: Sequence[str]
    config: Path | None
    embeds: bool
    """Prompts are looked at for their meaning, too."""
    seed: int


def recorded_traces(recorded: Recorded) -> tuple[list[Trace], dict[str, Side]]:
    """The traces, and the sides of the agents that take part. Raises `ConfigError` where a side has none."""
    traces = read_traces(recorded.traces)
    told = agents_of(traces)
    both = sorted(set(recorded.near) & set(recorded.far))
    if both:
        raise ConfigError(f"{both[0]} is named for both sides", hint="an agent is near or far")
    named = {**dict.fromkeys(recorded.near, Side.NEAR), **dict.fromkeys(recorded.far, Side.FAR)}
    unknown = [agent for agent in named if agent not in told]
    if unknown:
        raise ConfigError(f"the traces know no agent {unknown[0]!r}", hint=f"they tell of {', '.join(told)}")
    config = read_config(recorded.config)
    known: Mapping[str, Side] = named or ({} if config is None else config.agents) or {str(side): side for side in Side}
    sides = {agent: known[agent] for agent in told if agent in known}
    lacking = sorted(set(Side) - set(sides.values()))
    if lacking:
        hint = f"they tell of {', '.join(told)}: name yours with --near-agent and --far-agent"
        raise ConfigError(f"no {lacking[0]} agent of the traces is known", hint=hint)
    return traces, sides


def chosen_embedder(recorded: Recorded) -> Embedder | None:
    """None where prompts are looked at by their words alone."""
    if not recorded.embeds:
        return None
    if find_spec("onnxruntime") is None or find_spec("tokenizers") is None:
        warn("prompts are looked at by their words alone: pip install 'nearfar[router]' for their meaning")
        return None
    return Embedder()


@contextmanager
def progress_shown() -> Iterator[Callable[[str], None]]:
    """A line on standard error that says what is being done, and for how long."""
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=notes, transient=True) as progress:
        line = progress.add_task("reading ...", total=None)
        yield lambda text: progress.update(line, description=f"{text} ...")
