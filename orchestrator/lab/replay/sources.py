"""Replay recorded tasks by heads that are named, or trained on other tasks than they are asked about."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from ....protocols import Side
from ...routing.escalation import Escalation
from ...routing.escalation_training import train_escalation
from ...routing.traces import Trace
from ...routing.training import examples_of
from ...task.policy import Policy
from ...util.embedding.embedder import MiniLmEmbedder
from ..training.training import train_head, write_head
from .cascade import RecordedCascade
from .recording import Progress, with_router
from .replayed import Replayed, replay


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
