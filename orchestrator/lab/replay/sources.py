"""Replay recorded tasks by heads that are named, or trained on other tasks than they are asked about."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Self

from ....protocols import ConfigError, Side
from ...routing.escalation import Escalation
from ...routing.escalation_training import train_escalation
from ...routing.traces import Trace, agents_of, read_traces
from ...routing.training import examples_of
from ...task.policy import Policy
from ...util.embedding import MiniLmEmbedder
from ..training.training import train_head, write_head
from .cascade import RecordedCascade
from .recording import Progress, with_router
from .replayed import Replayed, replay
from .simulation import Simulation, simulation

_MOST_COMPARED: Final = 500
"""Newest tasks by which two policies are compared."""


@dataclass(frozen=True, slots=True)
class ReplaySource:
    """Recorded outcomes, and the tasks that are replayed."""

    traces: Sequence[Trace]
    """Learned from."""
    tested: Sequence[Trace] | None
    """Replayed, and never learned from; None: the same traces, each predicted by what was trained on others of them."""
    sides: Mapping[str, Side]
    """Side of each agent that takes part, in the order of their roles in a cascade."""
    embedder: MiniLmEmbedder | None
    """Embeds the prompts for heads that are trained; None: they look at words and classes alone."""
    seed: int

    @classmethod
    def among(cls, traces: Sequence[Trace], known: Mapping[str, Side], *, embedder: MiniLmEmbedder | None, hint: str) -> Self:
        """Return the source of traces whose agents' sides are `known`. Raises `ConfigError`, with the hint, where a side has no agent."""
        sides = {agent: side for agent, side in known.items() if agent in agents_of(traces)}
        lacking = sorted(set(Side) - set(sides.values()))
        if lacking:
            raise ConfigError(f"the traces have no {lacking[0]} agent that is known", hint=hint)
        return cls(traces, None, sides, embedder, 0)

    def replayed(self, policy: Policy, *, far_share: float | None = None, progress: Progress = lambda _: None) -> Replayed:
        """Replay the tasks. `far_share`: budget to hold over the stream, instead of the policy's. Raises `ConfigError` as `replay` and
        training do."""
        if self.tested is None or policy.router.head is not None:
            return self._replay(self.replayed_traces, policy, far_share, progress)
        with TemporaryDirectory(prefix="nearfar-head-") as folder:
            self._train_head(Path(folder), progress)
            found = self._replay(self.tested, with_router(policy, head=Path(folder)), far_share, progress)
            return replace(found, policy=policy)

    @property
    def replayed_traces(self) -> Sequence[Trace]:
        """The traces that are replayed."""
        return self.traces if self.tested is None else self.tested

    def cascade(self) -> tuple[RecordedCascade, Escalation | None]:
        """Return the recorded drafts, and an escalation that was trained on other traces; None: each draft is judged by others of them."""
        recorded = RecordedCascade.of(self.replayed_traces, self.sides)
        if self.tested is None:
            return recorded, None
        return recorded, Escalation(train_escalation(RecordedCascade.of(self.traces, self.sides).examples, seed=self.seed))

    def _replay(self, traces: Sequence[Trace], policy: Policy, far_share: float | None, progress: Progress) -> Replayed:
        return replay(traces, policy, sides=self.sides, embedder=self.embedder, seed=self.seed, far_share=far_share, progress=progress)

    def _train_head(self, folder: Path, progress: Progress) -> None:
        progress(f"training a head on {len(self.traces):,} traces")
        examples = examples_of(self.traces, list(self.sides))
        if self.embedder is not None:
            examples = replace(examples, embeddings=self.embedder.early_all(examples.prompts))
        write_head(train_head(examples, seed=self.seed), folder)


def installed_embedder() -> MiniLmEmbedder | None:
    """Return the model that embeds prompts; None where its packages are not installed."""
    has_all = find_spec("onnxruntime") is not None and find_spec("tokenizers") is not None
    return MiniLmEmbedder() if has_all else None


def compare_policies(recorded: Path, sides: Mapping[str, Side], policies: Sequence[Policy]) -> list[Simulation]:
    """Replay the newest recorded tasks under each policy. `sides` are those of the agents by name.

    Raises `ConfigError` for outcomes that cannot be read or are too few, and where packages are missing.
    """
    if find_spec("numpy") is None or find_spec("torch") is None:
        raise ConfigError("replaying recorded tasks needs numpy and torch", hint="pip install 'nearfar[train]'")
    traces = read_traces(recorded)[-_MOST_COMPARED:]
    hint = f"they tell of {', '.join(agents_of(traces)[:12])}"
    source = ReplaySource.among(traces, sides, embedder=installed_embedder(), hint=hint)
    return [simulation(source.replayed(policy)) for policy in policies]
