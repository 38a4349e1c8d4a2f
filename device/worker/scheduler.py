"""Continuous batching: every pass through the model takes the next token of each running step and some prompt tokens of the starting ones.

Only the worker process imports this module.
"""

import logging
import time
from collections.abc import Callable
from collections.abc import Sequence as Cells
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from pydantic import JsonValue

from ...protocols import ContextOverflow, DeadlineExceeded, InternalError, NearfarError, Performance, StepRequest
from ...protocols.secrets import log_defect
from ..energy import Measures, Measuring
from .admission import StepAdmission
from .draft_payoff import Pass
from .drafting import Drafter, Drafting
from .engine import Adapters, CacheContext, ImagePart, ImageReader, Model, Outfit, Sequence, Sequences, adapter_of, is_image, run, tokens_of
from .generation import Generation, ToolSyntax
from .prompt import FALLBACK_STOP, Prompt, PromptBuilder
from .protocol import StepEventKind, error_to_frame
from .sampling import Grammars


@dataclass(slots=True, eq=False, kw_only=True)
class StepState:
    """A step from its arrival to its end."""

    identifier: int
    request: StepRequest
    prompt: list[int]
    """Cells of the prompt; see `sequences`."""
    prompt_size: int
    """Entries that it takes in the cache."""
    outfit: Outfit
    most_tokens: int
    deadline: float | None
    generation: Generation
    images: dict[int, ImagePart]
    """Parts of images in the prompt, by their first cell."""
    overtaken: int = 0
    """Later steps that got a sequence before it."""
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
            "input_tokens": self.prompt_size,
            "cached_tokens": self.cached_tokens,
            "output_tokens": generation.output_tokens,
            "reasoning_tokens": generation.reasoning_tokens,
            "confidence": generation.confidence,
            "logprobs": generation.logprobs,
            "stop": generation.marker if generation.marker in self.request.stop else None,
            "performance": performance.model_dump(mode="json"),
        }


class Steps:
    """Makes steps for one model."""

    def __init__(
        self, model: Model, *, context_tokens: int, adapters: Cells[str], drafting: Drafting | None, images: ImageReader | None
    ) -> None:
        self._vocabulary = model.vocabulary
        self._context_tokens = context_tokens
        self._prompts = PromptBuilder(model, context_tokens=context_tokens, images=images)
        self._grammars = Grammars(model.vocabulary)
        self._syntax = ToolSyntax.of(model.vocabulary)
        self._adapters = Adapters(adapters)
        self._drafting = drafting

    def step(self, identifier: int, request: StepRequest, deadline: float | None) -> StepState:
        """Make the step of a request. Raises a `NearfarError` if the request is wrong."""
        prompt = self._prompts.prompt(request)
        room = self._context_tokens - prompt.size
        if room < 1:
            message = f"the prompt has {prompt.size} tokens, and the context holds {self._context_tokens}, prompt and output together"
            raise ContextOverflow(message, hint="shorten the conversation, or load the model with a larger context_tokens")
        most_tokens = min(room, request.max_output_tokens or room)
        generation = self._generation(request, prompt, most_tokens)
        outfit = self._adapters.outfit(request)
        return StepState(
            identifier=identifier,
            request=request,
            prompt=outfit.prompt(prompt.tokens, self._syntax.opener, self._syntax.closer),
            prompt_size=prompt.size,
            outfit=outfit,
            most_tokens=most_tokens,
            deadline=deadline,
            generation=generation,
            images=prompt.images,
            drafter=None if self._drafting is None else self._drafting.drafter(request),
        )

    def prompt_tokens(self, request: StepRequest) -> int:
        """Return the tokens of a step's prompt, as its usage counts them. Raises a `NearfarError` if the request is wrong."""
        return self._prompts.prompt(request).size

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


StepEvent: TypeAlias = tuple[int, StepEventKind, JsonValue]

_FIRST_CHUNK: Final = 128
_SMALLEST_CHUNK: Final = 16
_PATIENCE: Final = 4
"""Passes after which a step has waited long enough for its adapter while others run with another one."""
_CHUNK_SECONDS: Final = 0.2
"""Time that the prompt tokens of one pass may take: cancellations and running steps wait no longer than that."""

_logger = logging.getLogger(__name__)


class Scheduler:
    """Runs steps side by side on one model."""

    def __init__(
        self,
        model: Model,
        context: CacheContext,
        *,
        context_tokens: int,
        parallel: int,
        measuring: Measuring | None = None,
        drafting: Drafting | None = None,
        images: ImageReader | None = None,
        admission: Callable[[Sequences], StepAdmission] = StepAdmission,
    ) -> None:
        """`drafting`: guesses tool calls, for engines that give the logits of several tokens of a sequence and can take them back.
        `images`: reads images; None: the model reads none. `admission`: makes the order in which steps begin."""
        self._steps = Steps(model, context_tokens=context_tokens, adapters=context.adapters, drafting=drafting, images=images)
        self._context = context
        self._sequences = Sequences(context, count=parallel, cells=context.cells)
        self._measuring = measuring or Measuring()
        self._drafting = drafting
        self._plan: Pass | None = None
        """The current pass, if it may hold drafts."""
        self._waiting = admission(self._sequences)
        self._running: list[StepState] = []
        self._events: list[StepEvent] = []
        self._chunk = _FIRST_CHUNK
        self._seconds_per_token = 0.0
        """Seconds for a token in the last pass that read much of a prompt."""
        self._adapter = 0
        self.decoded_tokens = 0
        self.prefilled_tokens = 0
        self.decode_calls = 0
        self.widest_batch = 0

    @property
    def busy(self) -> bool:
        return bool(self._running or self._waiting or self._events)

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def drafts(self) -> dict[str, dict[str, int]]:
        return {} if self._drafting is None else self._drafting.counts.as_dict()

    def submit(self, identifier: int, request: StepRequest, timeout: float | None) -> None:
        """Queue a step. What is wrong with it becomes its error event."""
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            step = self._steps.step(identifier, request, deadline)
        except NearfarError as error:
            self._fail(identifier, error)
        except Exception as defect:
            # The boundary of a step: its defect must not end the others'.
            log_defect(_logger, f"step {identifier} could not be prepared", defect)
            self._fail(identifier, InternalError("the step could not be prepared", hint="the log has the details"))
        else:
            self._waiting.add(step)

    def prompt_tokens(self, request: StepRequest) -> int:
        """Return the tokens that the prompt of a request would have. Raises a `NearfarError` if the request is wrong."""
        return self._steps.prompt_tokens(request)

    def cancel(self, identifier: int) -> None:
        """Stop a step. One that is over already is no concern."""
        for step in (*self._waiting, *self._running):
            if step.identifier == identifier:
                self._remove(step)
                self._events.append((identifier, StepEventKind.CANCELLED, None))

    def round(self) -> list[StepEvent]:
        """Make one pass through the model, if there is a step; return the events."""
        self._expire()
        self._admit()
        if self._running:
            self._pass()
        events, self._events = self._events, []
        return events

    def _expire(self) -> None:
        now = time.monotonic()
        for step in (*self._waiting, *self._running):
            if step.deadline is not None and now >= step.deadline:
                self._remove(step)
                message = f"the step took longer than its timeout; {step.generation.output_tokens} tokens were generated"
                self._fail(step.identifier, DeadlineExceeded(message, hint="give a longer timeout or a smaller max_output_tokens"))

    def _admit(self) -> None:
        while step := self._waiting.next(engine_is_idle=not self._running):
            assert step.sequence is not None, "it was admitted"
            step.last_turn = self.decode_calls
            step.cached_tokens = len(step.sequence.cells)
            step.queue = [*step.prompt[step.cached_tokens :], *step.outfit.output(step.generation.prologue, in_call=True)]
            self._running.append(step)
            self._measuring.begin(step.measures)

    def _pass(self) -> None:
        begin = time.monotonic()
        try:
            self._decode_image()
            if all(is_image(step.queue[0]) for step in self._running):
                return
            fed = self._fill_batch()
            filled = time.monotonic()
            if not self._decode():
                raise InternalError("the key-value cache has no room although it was reserved")
        except NearfarError as error:
            self._fail_all(error)
            return
        decoded = time.monotonic()
        self._adapt_chunk(decoded - filled)
        self._measuring.passed()
        for step, index in fed:
            if not step.queue:
                self._advance(step, index)
        if self._plan is not None:
            self._plan.end(model_seconds=decoded - filled, seconds=time.monotonic() - begin)

    def _decode_image(self) -> None:
        """Run the next image of one step through the model: it takes a pass of its own."""
        step = next((step for step in self._running if is_image(step.queue[0])), None)
        if step is None:
            return
        assert step.sequence is not None, "running steps have a sequence"
        (image,) = (part for cell, part in step.images.items() if cell == tokens_of(step.queue[:1])[0])
        self._adapter = adapter_of(step.queue)
        self._context.use_adapter(self._adapter)
        place = (len(step.sequence.cells), step.sequence.identifier)
        self.decode_calls += 1
        if not image.decode(*place):
            self._sequences.forget_idle()
            if not image.decode(*place):
                raise InternalError("the key-value cache has no room for an image although it was reserved")
        cells, step.queue = step.queue[: image.positions], step.queue[image.positions :]
        step.sequence.cells += cells
        step.last_turn = self.decode_calls
        self._count(step, cells)

    def _fill_batch(self) -> list[tuple[StepState, int]]:
        """Feed the queues of the steps with one adapter to the batch, running ones first; returns each with its last index in the batch."""
        batch = self._context.batch
        batch.clear()
        fed = []
        adapter = self._adapter = self._next_adapter()
        self._context.use_adapter(adapter)
        steps = [step for step in self._ready if adapter_of(step.queue) == adapter]
        for step in steps:
            step.last_turn = self.decode_calls
        self._plan = self._plan_pass(steps)
        for step in sorted(steps, key=lambda step: step.is_prefilling):
            room = min(batch.capacity, max(self._chunk, len(steps))) - batch.size
            if room > 0:
                fed.append((step, self._feed(step, room)))
        self.widest_batch = max(self.widest_batch, len(fed))
        return fed

    @property
    def _ready(self) -> list[StepState]:
        """The running steps that go on with tokens, not with an image."""
        return [step for step in self._running if not is_image(step.queue[0])]

    def _next_adapter(self) -> int:
        """Choose the adapter of a pass: the last one again while a step needs it and no other has waited long, since a switch takes
        time."""
        longest = min(self._ready, key=lambda step: step.last_turn)
        has_waited = self.decode_calls - longest.last_turn > _PATIENCE
        goes_on = not has_waited and any(adapter_of(step.queue) == self._adapter for step in self._ready)
        return self._adapter if goes_on else adapter_of(longest.queue)

    def _feed(self, step: StepState, room: int) -> int:
        sequence, cells = step.sequence, step.queue[:room]
        assert sequence is not None, "running steps have a sequence"
        cells = cells[: run(cells)]
        self._count(step, cells)
        step.fed, step.queue = cells, step.queue[len(cells) :]
        position, last = len(sequence.cells), not step.queue
        index = self._context.batch.add(tokens_of(cells), position=position, sequence=sequence.identifier, last=last)
        sequence.cells += cells
        if self._plan is not None and step.drafter is not None and last:
            self._add_draft(step, step.drafter, sequence, self._plan)
        return index

    def _plan_pass(self, steps: list[StepState]) -> Pass | None:
        """Return a pass that may hold drafts; None if it is to read prompts, which are then cut into the same passes as without any."""
        if self._drafting is None or any(step.is_prefilling for step in steps):
            return None
        return self._drafting.payoff.plan(size=sum(len(step.queue) for step in steps), steps=len(steps))

    def _add_draft(self, step: StepState, drafter: Drafter, sequence: Sequence, plan: Pass) -> None:
        room = len(step.prompt) + step.most_tokens - len(sequence.cells)
        tokens = drafter.draft(step.generation, plan, most=min(room, self._chunk - plan.size))
        for position, token in enumerate(tokens, start=len(sequence.cells)):
            self._context.batch.add([token], position=position, sequence=sequence.identifier, last=True)
        step.drafted = step.outfit.output(tokens, in_call=step.generation.in_call)
        step.measures.fed(len(tokens))
        sequence.cells += step.drafted

    def _count(self, step: StepState, cells: list[int]) -> None:
        step.measures.fed(len(cells))
        if step.is_prefilling:
            self.prefilled_tokens += len(cells)
        else:
            self.decoded_tokens += len(cells)

    def _decode(self) -> bool:
        self.decode_calls += 1
        if self._context.decode():
            return True
        self._sequences.forget_idle()
        return self._context.decode()

    def _adapt_chunk(self, seconds: float) -> None:
        tokens = self._context.batch.size
        if tokens >= _SMALLEST_CHUNK:
            if any(step.is_prefilling for step in self._running):
                self._seconds_per_token = seconds / tokens
            wanted = int(tokens * _CHUNK_SECONDS / max(seconds, 1e-6))
            self._chunk = min(max(wanted, _SMALLEST_CHUNK), self._context.batch.capacity)

    def _advance(self, step: StepState, index: int) -> None:
        generation = step.generation
        try:
            if generation.finished is None:
                step.queue = self._verify_draft(step, index) if step.drafted else self._undrafted(step, index)
                step.measures.chosen(generation.output_tokens)
        except NearfarError as error:
            self._remove(step)
            self._fail(step.identifier, error)
            return
        except Exception as defect:
            # The boundary of a step, as in `submit`.
            log_defect(_logger, f"step {step.identifier} failed", defect)
            self._remove(step)
            self._fail(step.identifier, InternalError("the step failed in the worker", hint="the log has the details"))
            return
        if generation.events:
            if step.drafter is not None:
                step.drafter.remember(generation)
            self._events += [(step.identifier, *event) for event in generation.events]
            generation.events.clear()
        if generation.finished is not None:
            self._remove(step)
            performance = self._measuring.performance(step.measures, generation.output_tokens)
            self._events.append((step.identifier, StepEventKind.FINISHED, step.summary(performance)))

    def _verify_draft(self, step: StepState, index: int) -> list[int]:
        """Take the right part of the draft, drop the rest from the cache, and return the cells to compute next."""
        drafter, sequence, drafted = step.drafter, step.sequence, step.drafted
        assert drafter is not None, "only a drafter drafts"
        assert sequence is not None, "running steps have a sequence"
        step.drafted = []
        verdict = drafter.verify(step.fed, drafted, lambda offset, tolerance: self._next_cells(step, index + offset, tolerance))
        self.decoded_tokens += verdict.kept
        surplus = len(drafted) - verdict.kept
        if surplus:
            del sequence.cells[-surplus:]
            if not self._context.forget(sequence.identifier, len(sequence.cells)):
                raise InternalError("rejected draft tokens cannot be removed from the cache", hint="report the model's name")
        return verdict.queue

    def _undrafted(self, step: StepState, index: int) -> list[int]:
        cells = self._next_cells(step, index)
        if step.drafter is not None and cells:
            step.drafter.chose(tokens_of(cells))
        return cells

    def _next_cells(self, step: StepState, index: int, tolerance: float = 0.0) -> list[int]:
        generation = step.generation
        was_in_call = generation.in_call
        tokens = generation.advance(self._context.logits(index), tolerance)
        # Opener and closer belong to the call.
        return step.outfit.output(tokens, in_call=was_in_call or generation.in_call)

    def _remove(self, step: StepState) -> None:
        if step.sequence is None:
            self._waiting.remove(step)
        else:
            self._running.remove(step)
            self._measuring.end(step.measures, cells=len(step.sequence.cells))
            self._sequences.release(step.sequence)
            self._waiting.leave(step, step.sequence, seconds_per_token=self._seconds_per_token)

    def _fail(self, identifier: int, error: NearfarError) -> None:
        self._events.append((identifier, StepEventKind.ERROR, error_to_frame(error)))

    def _fail_all(self, error: NearfarError) -> None:
        for step in list(self._running):
            self._remove(step)
            self._fail(step.identifier, error)
        self._sequences.reset()
