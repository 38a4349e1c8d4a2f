"""A step in the worker, and how it is made of a request.

Only the worker process imports this module.
"""

from collections.abc import Sequence as Cells
from dataclasses import dataclass, field

from pydantic import JsonValue

from ...protocols import ContextOverflow, Performance, StepRequest
from .adapters import Adapters, Outfit
from .constraints import Grammars
from .drafting import Drafter, Drafting
from .engine import Model
from .generation import Generation, ToolSyntax
from .measuring import Measures
from .prompt import Prompt, PromptBuilder
from .sequences import Sequence
from .template import FALLBACK_STOP


@dataclass(slots=True, eq=False, kw_only=True)
class Step:
    """A step from its arrival to its end."""

    identifier: int
    request: StepRequest
    prompt: list[int]
    """Cells of the prompt; see `adapters`."""
    outfit: Outfit
    most_tokens: int
    deadline: float | None
    generation: Generation
    sequence: Sequence | None = None
    cached_tokens: int = 0
    queue: list[int] = field(default_factory=list)
    """Cells that are still to be computed before the next token can be chosen."""
    last_turn: int = 0
    """The last pass that had its adapter."""
    drafter: Drafter | None = None
    fed: list[int] = field(default_factory=list)
    """Cells of the queue that are in the current pass."""
    drafted: list[int] = field(default_factory=list)
    """Cells behind them that are only guessed."""
    measures: Measures = field(default_factory=Measures)

    @property
    def is_prefilling(self) -> bool:
        """True until the first token is chosen."""
        return self.measures.first_token is None

    def summary(self, performance: Performance) -> dict[str, JsonValue]:
        """Return the payload of the event that finishes a step."""
        generation = self.generation
        return {
            "reason": generation.finished,
            "input_tokens": len(self.prompt),
            "cached_tokens": self.cached_tokens,
            "output_tokens": generation.output_tokens,
            "confidence": generation.confidence,
            "performance": performance.model_dump(mode="json"),
        }


class Steps:
    """Makes steps for one model."""

    def __init__(self, model: Model, *, context_tokens: int, adapters: Cells[str], drafting: Drafting | None) -> None:
        self._vocabulary = model.vocabulary
        self._context_tokens = context_tokens
        self._prompts = PromptBuilder(model, context_tokens=context_tokens)
        self._grammars = Grammars(model.vocabulary)
        self._syntax = ToolSyntax.of(model.vocabulary)
        self._adapters = Adapters(adapters)
        self._drafting = drafting

    def step(self, identifier: int, request: StepRequest, deadline: float | None) -> Step:
        """Make the step of a request. Raises a `NearfarError` if the request is wrong."""
        prompt = self._prompts.prompt(request)
        room = self._context_tokens - len(prompt.tokens)
        if room < 1:
            message = (
                f"the prompt has {len(prompt.tokens)} tokens, and the context holds {self._context_tokens}, prompt and output together"
            )
            raise ContextOverflow(message, hint="shorten the conversation, or load the model with a larger context_tokens")
        most_tokens = min(room, request.max_output_tokens or room)
        generation = self._generation(request, prompt, most_tokens)
        outfit = self._adapters.outfit(request)
        return Step(
            identifier=identifier,
            request=request,
            prompt=outfit.prompt(prompt.tokens, self._syntax.opener, self._syntax.closer),
            outfit=outfit,
            most_tokens=most_tokens,
            deadline=deadline,
            generation=generation,
            drafter=None if self._drafting is None else self._drafting.drafter(request),
        )

    def _generation(self, request: StepRequest, prompt: Prompt, most_tokens: int) -> Generation:
        stop = (*request.stop, FALLBACK_STOP) if self._prompts.template.is_fallback else request.stop
        return Generation(
            request,
            vocabulary=self._vocabulary,
            syntax=self._syntax,
            grammars=self._grammars,
            most_tokens=most_tokens,
            stop=stop,
            reasoning_opened=prompt.opens_reasoning,
        )
