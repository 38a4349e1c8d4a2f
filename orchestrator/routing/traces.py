"""Traces: tasks with what several agents came to on them, which the router is trained, calibrated and simulated on."""

import gzip
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pydantic import Field, ValidationError

from ...protocols import ConfigError
from ...protocols.messages import Value

_MOST_PROBLEMS = 5


class AgentOutcome(Value):
    """What one agent came to on one task."""

    score: float | None = Field(default=None, ge=0, le=1)
    """1 for a task well done, 0 for one that failed; None: nobody knows, and nothing is learned from it."""
    answer: str | None = None
    """Its final answer, by which agents are said to agree; None: not recorded, or it gave none."""
    is_valid: bool | None = None
    """The draft kept to its schema, or its tool calls to theirs; None: there was none, or nobody looked."""
    is_grounded: bool | None = None
    """Its claims occur in a tool result or the prompt; None: nobody looked."""
    confidence: float | None = Field(default=None, ge=0, le=1)
    """The lowest of its steps' confidences; None where unknown."""
    input_tokens: int | None = Field(default=None, ge=0)
    output_tokens: int | None = Field(default=None, ge=0)
    dollars: float | None = Field(default=None, ge=0)
    seconds: float | None = Field(default=None, ge=0)
    joules: float | None = Field(default=None, ge=0)


class Trace(Value):
    """One task, and what came of it."""

    id: str = ""
    prompt: str = Field(min_length=1)
    task_class: str = ""
    """From coarse to fine: `search/hops`. Empty: unknown."""
    tools: tuple[str, ...] = ()
    """Names of the tools that it could call."""
    outcomes: Mapping[str, AgentOutcome] = Field(min_length=1)
    """By the agent's name."""


def read_traces(path: Path) -> list[Trace]:
    """The traces of a JSON Lines file, gzipped or not.

    Raises `ConfigError` that names the lines which are none, and for a file without any.
    """
    traces, problems = [], []
    for number, line in enumerate(_lines(path), start=1):
        try:
            traces.append(Trace.model_validate_json(line))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            problems.append(f"{path}, line {number}: {'.'.join(map(str, first['loc'])) or 'the line'}: {first['msg']}")
    if problems:
        more = f"\nand {len(problems) - _MOST_PROBLEMS} more lines" if len(problems) > _MOST_PROBLEMS else ""
        raise ConfigError("\n".join(problems[:_MOST_PROBLEMS]) + more, hint="docs/routing.md shows what a trace is")
    if not traces:
        raise ConfigError(f"{path} holds no traces", hint="docs/routing.md shows what a trace is")
    return traces


def agents_of(traces: Sequence[Trace]) -> tuple[str, ...]:
    """The agents that the traces tell of, in the order in which they are first met."""
    return tuple(dict.fromkeys(agent for trace in traces for agent in trace.outcomes))


def _lines(path: Path) -> Iterator[str]:
    """The lines that hold something."""
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8") as file:
            yield from (line for line in file if line.strip())
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise ConfigError(f"the traces in {path} cannot be read: {error}", hint="--traces names a file of JSON lines") from error
