"""Steps that write recorded tool calls, several at a time, each pass computed by a real model.

No shipped model would make these calls, so what is chosen is **not decided by a model: it is the recorded token**, tokenised outside of
the engine as far.gguf does. The passes are computed all the same, so that they take the time that they take.
"""

import json
import time
from collections.abc import Collection, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nearfar.device.llama.model import LlamaContext, LlamaModel
from nearfar.device.worker.admission import StepAdmission
from nearfar.device.worker.drafting import Drafting
from nearfar.device.worker.generation import ToolSyntax
from nearfar.device.worker.prompt import PromptBuilder
from nearfar.device.worker.protocol import StepEventKind
from nearfar.device.worker.sampling import Grammars
from nearfar.device.worker.scheduler import Scheduler, StepState
from nearfar.protocols import Message, StepRequest, ToolChoice

from .recorded_calls import RecordedCall

CONTEXT = 1 << 16
BEFORE, CHUNK = 640, 128
"""Tokens that lie in each real sequence's cache in front of what is timed, in place of the prompt, and how many are read in a pass."""


class Script(NamedTuple):
    """The tokens of a step: those it reads, and those it writes."""

    request: StepRequest
    prompt: list[int]
    output: list[int]


class Scripts:
    """Makes scripts of recorded calls, for one vocabulary."""

    def __init__(self, model: LlamaModel) -> None:
        self._vocabulary = model.vocabulary
        self._grammars, self._syntax = Grammars(model.vocabulary), ToolSyntax.of(model.vocabulary)
        self._prompts = PromptBuilder(model, context_tokens=CONTEXT)

    def scripts(self, calls: Sequence[RecordedCall]) -> list[Script]:
        """Return the scripts of those calls that the grammar allows."""
        return [script for call in calls if (script := self._script(call)) is not None]

    def _script(self, call: RecordedCall) -> Script | None:
        messages = tuple(Message.user(text) for text in call.said)
        request = StepRequest(messages=messages, tools=call.tools, tool_choice=ToolChoice.REQUIRED, max_output_tokens=2048)
        tool = next(tool for tool in call.tools if tool.name == call.tool)
        order = [key for key in tool.parameters["properties"] if key in call.arguments]
        text = json.dumps({"name": call.tool, "arguments": {key: call.arguments[key] for key in order}}, ensure_ascii=False)
        tokens, grammar = self._vocabulary.tokenize_inside(text), self._grammars.call(call.tools)
        if grammar.follow(tokens) < len(tokens) or not grammar.complete:
            return None
        end = min(self._vocabulary.ends)
        prompt = [*self._prompts.prompt(request).tokens, *self._syntax.opener]
        return Script(request, prompt, [*tokens, *self._syntax.closer, end, end])


class Added(NamedTuple):
    """A token in a batch."""

    sequence: int
    position: int
    token: int
    last: bool


class Recording:
    """A batch and a context in which the next token of a sequence is always the one of its script."""

    adapters: Sequence[str] = ()
    cells = capacity = CONTEXT

    def __init__(self, size: int, *, sequences: int, computed: LlamaContext | None) -> None:
        """With a real model's context, it computes what is behind the prompts."""
        self._size = size
        self._computed = computed
        self._added: list[Added] = []
        self._cells: list[list[int]] = [[] for _ in range(sequences)]
        self._scripts: Collection[Script] = ()
        self.batch = self

    def warm_up(self) -> None:
        """Compute something in the place of the prompts."""
        for sequence in range(len(self._cells)):
            for start in range(0, BEFORE, CHUNK):
                self._compute([Added(sequence, place, 1, last=False) for place in range(start, start + CHUNK)])

    def load(self, scripts: Collection[Script]) -> None:
        self._scripts = scripts

    @property
    def size(self) -> int:
        return len(self._added)

    def clear(self) -> None:
        self._added = []

    def add(self, tokens: Sequence[int], *, position: int, sequence: int, last: bool) -> int:
        end = position + len(tokens)
        self._cells[sequence][position:] = tokens
        self._added += (Added(sequence, place, token, last and place == end - 1) for place, token in enumerate(tokens, start=position))
        return len(self._added) - 1

    def use_adapter(self, number: int) -> None:
        del number

    def decode(self) -> bool:
        return self._compute(self._to_compute())

    def _to_compute(self) -> list[Added]:
        """Return what is behind the prompts, each token with logits, as drafted ones have."""
        scripts = {sequence: self._script_of(sequence) for sequence in {one.sequence for one in self._added}}
        starts = {sequence: len(script.prompt) for sequence, script in scripts.items() if script is not None}
        behind = [one for one in self._added if one.position >= starts.get(one.sequence, CONTEXT)]
        return [Added(one.sequence, BEFORE + one.position - starts[one.sequence], one.token, last=True) for one in behind]

    def _compute(self, tokens: Sequence[Added]) -> bool:
        if self._computed is None or not tokens:
            return True
        self._computed.batch.clear()
        for sequence, group in groupby(tokens, key=lambda one: one.sequence):
            for number, one in enumerate(group):
                if not number:
                    self._computed.forget(sequence, one.position)
                self._computed.batch.add([one.token], position=one.position, sequence=sequence, last=one.last)
        return self._computed.decode()

    def _script_of(self, sequence: int) -> Script | None:
        cells = self._cells[sequence]
        return next((script for script in self._scripts if cells[: len(script.prompt)] == script.prompt), None)

    def logits(self, index: int) -> NDArray[np.float32]:
        one = self._added[index]
        script = self._script_of(one.sequence)
        assert script is not None, "a token is chosen behind a whole prompt"
        chosen = np.zeros(self._size, dtype=np.float32)
        chosen[script.output[one.position + 1 - len(script.prompt)]] = 10
        return chosen

    def forget(self, sequence: int, start: int) -> bool:
        del self._cells[sequence][start:]
        return True

    def share(self, source: int, target: int, end: int) -> bool:
        self._cells[target] = self._cells[source][:end]
        return True


class OrderOfArrival(StepAdmission):
    """Lets steps begin in the order of arrival, and keeps no sequence for anyone."""

    def _first(self) -> StepState:
        return self._waiting[0]

    def _kept_from(self, step: StepState) -> Collection[int]:
        del step
        return ()


class Rehearsal:
    """A scheduler whose steps write recorded calls, so many at a time."""

    def __init__(self, model: LlamaModel, drafting: Drafting | None, *, together: int = 1, computed: LlamaContext | None = None) -> None:
        self._recording = Recording(model.vocabulary.size, sequences=together, computed=computed)
        self._recording.warm_up()
        context: Any = self._recording
        self.scheduler = Scheduler(
            model, context, context_tokens=CONTEXT // together, parallel=together, drafting=drafting, admission=OrderOfArrival
        )
        self.tokens = self.passes = 0
        self.seconds = 0.0

    def begin(self, scripts: Sequence[Script]) -> None:
        """Read the prompts of steps that will start together."""
        self._recording.load(scripts)
        for most in (1, None):
            for number, script in enumerate(scripts):
                limit = most or script.request.max_output_tokens
                self.scheduler.submit(number, script.request.model_copy(update={"max_output_tokens": limit}), None)
            while most and self.scheduler.busy:
                self.scheduler.round()
        self.tokens += sum(len(script.output) - 2 for script in scripts)

    def go_on(self) -> bool:
        """Make one pass, and count it unless it reads prompts; False once all steps have ended."""
        before, begin = self.scheduler.prefilled_tokens, time.thread_time()
        for _, kind, payload in self.scheduler.round():
            if kind is StepEventKind.ERROR:
                raise RuntimeError(f"a call could not be written: {payload}")
        if self.scheduler.prefilled_tokens == before:
            self.passes += 1
            self.seconds += time.thread_time() - begin
        return self.scheduler.busy
