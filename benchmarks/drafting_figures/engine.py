"""Models to draft on, without the process around them."""

from pathlib import Path

from nearfar.device.hardware.processors import Threads, threads_for
from nearfar.device.llama.devices import CPU_ONLY
from nearfar.device.llama.model import LlamaAdapters, LlamaContext, LlamaModel
from nearfar.device.worker.draft_payoff import Payoff
from nearfar.device.worker.drafting import Drafting
from nearfar.device.worker.scheduler import Scheduler

MODELS = Path(__file__).parents[2] / "device" / "models"
CONTEXT = 1024


class Steady(Scheduler):
    """Cuts prompts into the same passes in every run: how they are cut shows in the last digits of what follows."""

    def _adapt_chunk(self, seconds: float) -> None:
        del seconds


class Engine:
    """One loaded model, and schedulers on it, with as many threads as an agent takes."""

    def __init__(self, path: Path, threads: Threads | None = None) -> None:
        self.model = LlamaModel(str(path), CPU_ONLY)
        self._adapters = LlamaAdapters(self.model.handle, {})
        self._threads = threads or threads_for(self.model.parameters)

    def context(self, sequences: int = 4, tokens: int = CONTEXT) -> LlamaContext:
        return LlamaContext(self.model, cells=sequences * tokens, sequences=sequences, threads=self._threads, adapters=self._adapters)

    def scheduler(self, *, drafts: bool, payoff: Payoff | None = None) -> Steady:
        drafting = Drafting(self.model.vocabulary, tolerance=0.1, payoff=payoff) if drafts else None
        return Steady(self.model, self.context(), context_tokens=CONTEXT, parallel=4, drafting=drafting)


def enlarged(folder: Path) -> Path:
    """far.gguf with 115M parameters."""
    from train.enlarge import enlarge

    enlarge(MODELS / "far.gguf", folder / "large.gguf")
    return folder / "large.gguf"
