"""Drafting of recorded tool calls: which passes it takes, and how long these take on a model of 115M parameters.

No shipped model would make these calls, so what is chosen is **not decided by a model: it is the recorded token**, tokenised as far.gguf
does. For each set, in its own order:

`tokens_per_forward`: tokens of calls / passes with drafts as long as they can be; no model runs. `acceptance_length`: tokens of a run of
one source that are right. `cold`: the first time through; `again`: the second time.
`speedup`: seconds of plain decoding / of drafting. Each pass is computed by far.gguf enlarged to 115M parameters, with drafts as long as
they pay there. Over the second half of a set: `cold` with nothing known before, `warm` with the calls of the first half as history, `again`
once more; by source: what each brings alone, warm.
"""

import json
import time
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nearfar.device.llama.model import LlamaContext, LlamaModel
from nearfar.device.worker.draft_payoff import Draft, Eager, GuessSource, Pass, Payoff
from nearfar.device.worker.drafting import Drafting
from nearfar.device.worker.generation import ToolSyntax
from nearfar.device.worker.prompt import PromptBuilder
from nearfar.device.worker.protocol import StepEventKind
from nearfar.device.worker.sampling import Grammars
from nearfar.device.worker.scheduler import Scheduler, StepEvent
from nearfar.protocols import Message, StepRequest, ToolChoice

from .engine import Engine
from .recorded_calls import RecordedCall, recorded_calls

CONTEXT = 1 << 16
BEFORE, CHUNK = 640, 128
"""Tokens that lie in the real model's cache in front of what is timed, in place of the prompt, and how many of them are read in a pass."""


class Recording:
    """A batch and a context in which the next token is always the one that was recorded.

    With a context of a real model, that computes each pass behind the prompt, so that passes take the time that they take.
    """

    adapters: Sequence[str] = ()
    cells = capacity = CONTEXT

    def __init__(self, size: int, computed: LlamaContext | None = None) -> None:
        self._size = size
        self._computed = computed
        self._positions: list[int] = []
        self._tokens: list[int] = []
        self._start = 0
        self._script: list[int] = []
        self.batch = self
        if computed is not None:
            for place in range(0, BEFORE, CHUNK):
                _add(computed, [1] * CHUNK, place)
                computed.decode()

    def load(self, prompt: list[int], output: list[int]) -> None:
        """What is read next, and then written."""
        self._script, self._start = [*prompt, *output], len(prompt)

    @property
    def size(self) -> int:
        return len(self._positions)

    def clear(self) -> None:
        self._positions, self._tokens = [], []

    def add(self, tokens: Sequence[int], *, position: int, sequence: int, last: bool) -> int:
        del sequence, last
        self._positions += range(position, position + len(tokens))
        self._tokens += tokens
        return len(self._positions) - 1

    def use_adapter(self, number: int) -> None:
        del number

    def decode(self) -> bool:
        if self._computed is None or self._positions[0] < self._start:
            return True
        place = BEFORE + self._positions[0] - self._start
        self._computed.forget(0, place)
        _add(self._computed, self._tokens, place)
        return self._computed.decode()

    def logits(self, index: int) -> NDArray[np.float32]:
        chosen = np.zeros(self._size, dtype=np.float32)
        chosen[self._script[self._positions[index] + 1]] = 10
        return chosen

    def forget(self, sequence: int, start: int) -> bool:
        del sequence, start
        return True

    def share(self, source: int, target: int, end: int) -> bool:
        del source, target, end
        return True


def _add(context: LlamaContext, tokens: Sequence[int], position: int) -> None:
    """All of them with logits, as drafted ones have."""
    context.batch.clear()
    for place, token in enumerate(tokens, start=position):
        context.batch.add([token], position=place, sequence=0, last=True)


class Rehearsal:
    """A scheduler whose steps write recorded calls."""

    def __init__(self, model: LlamaModel, drafting: Drafting | None, computed: LlamaContext | None = None) -> None:
        self._vocabulary = model.vocabulary
        self._grammars, self._syntax = Grammars(model.vocabulary), ToolSyntax.of(model.vocabulary)
        self._prompts = PromptBuilder(model, context_tokens=CONTEXT)
        self._recording = Recording(model.vocabulary.size, computed)
        context: Any = self._recording
        self.scheduler = Scheduler(model, context, context_tokens=CONTEXT, parallel=1, drafting=drafting)
        self.tokens = self.passes = self.skipped = 0
        self.seconds = 0.0

    def add(self, call: RecordedCall) -> None:
        output = self._written(call)
        if output is None:
            self.skipped += 1
            return
        messages = tuple(Message.user(text) for text in call.said)
        request = StepRequest(messages=messages, tools=call.tools, tool_choice=ToolChoice.REQUIRED, max_output_tokens=2048)
        end = min(self._vocabulary.ends)
        self._recording.load([*self._prompts.prompt(request).tokens, *self._syntax.opener], [*output, end, end])
        self.scheduler.submit(0, request, None)
        while self.scheduler.busy:
            before, begin = self.scheduler.prefilled_tokens, time.perf_counter()
            _check(self.scheduler.round())
            if self.scheduler.prefilled_tokens == before:
                self.passes += 1
                self.seconds += time.perf_counter() - begin
        self.tokens += len(output)

    def _written(self, call: RecordedCall) -> list[int] | None:
        """The tokens of a call and its closer, the parameters in their schema's order; None if the grammar forbids it."""
        tool = next(tool for tool in call.tools if tool.name == call.tool)
        order = [key for key in tool.parameters["properties"] if key in call.arguments]
        text = json.dumps({"name": call.tool, "arguments": {key: call.arguments[key] for key in order}}, ensure_ascii=False)
        tokens = self._vocabulary.tokenize_inside(text)
        grammar = self._grammars.call(call.tools)
        return [*tokens, *self._syntax.closer] if grammar.follow(tokens) == len(tokens) and grammar.complete else None


def _check(events: Sequence[StepEvent]) -> None:
    for _, kind, payload in events:
        if kind is StepEventKind.ERROR:
            raise RuntimeError(f"a call could not be written: {payload}")


def counted(model: LlamaModel, calls: Sequence[RecordedCall]) -> dict[str, object]:
    """What drafts come to that are as long as they can be."""
    rehearsal = Rehearsal(model, Drafting(model.vocabulary, tolerance=0.0, payoff=Eager()))
    result: dict[str, object] = {"calls": len(calls)}
    for turn in ("cold", "again"):
        rehearsal.tokens = rehearsal.passes = rehearsal.skipped = 0
        for call in calls:
            rehearsal.add(call)
        result[f"tokens_per_forward_{turn}"] = round(rehearsal.tokens / rehearsal.passes, 2)
        drafts = rehearsal.scheduler.drafts.items()
        result[f"acceptance_length_{turn}"] = {source: round(one["accepted"] / max(one["runs"], 1), 2) for source, one in drafts}
    return {**result, "skipped": rehearsal.skipped}


class OneSource(Payoff):
    """Drafts end where another source than this one would go on."""

    def __init__(self, source: GuessSource) -> None:
        super().__init__()
        self._source = source

    def cut(self, draft: Draft, pass_: Pass) -> Draft:
        own = sum(1 for _ in takewhile(lambda origin: origin.source is self._source, draft.origins))
        return super().cut(draft.first(own), pass_)


def known_after(model: LlamaModel, calls: Sequence[RecordedCall], payoff: Payoff) -> Drafting:
    """What is known once these were made; what passes cost is still to be found out."""
    drafting = Drafting(model.vocabulary, tolerance=0.0, payoff=Eager())
    rehearsal = Rehearsal(model, drafting)
    for call in calls:
        rehearsal.add(call)
    payoff.records = drafting.payoff.records
    drafting.payoff = payoff
    return drafting


def timed(engine: Engine, calls: Sequence[RecordedCall], drafting: Drafting) -> float:
    """Plain seconds / drafted seconds, call by call by turns."""
    model = engine.model
    drafted, plain = Rehearsal(model, drafting, engine.context()), Rehearsal(model, None, engine.context())
    for number, call in enumerate(calls):
        for rehearsal in (plain, drafted) if number % 2 else (drafted, plain):
            rehearsal.add(call)
    return round(plain.seconds / drafted.seconds, 3)


def speedups(engine: Engine, calls: Sequence[RecordedCall], *, most: int, history: int, by_source: bool) -> dict[str, object]:
    """Over what follows the first half, at most so many calls, with at most so many before them as history."""
    half = len(calls) // 2
    before, rest = calls[max(half - history, 0) : half], calls[half : half + most]
    known = known_after(engine.model, before, Payoff())
    result: dict[str, object] = {
        "speedup_cold": timed(engine, rest, Drafting(engine.model.vocabulary, tolerance=0.0)),
        "speedup_warm": timed(engine, rest, known),
        "speedup_again": timed(engine, rest, known),
    }
    if by_source:
        alone = {source: known_after(engine.model, before, OneSource(source)) for source in GuessSource}
        result["speedup_by_source"] = {source: timed(engine, rest, known) for source, known in alone.items()}
    return result


def recorded(far: Engine, large: Engine, data: Path, *, quick: bool) -> dict[str, object]:
    """The figures of each set in the folder; the quick ones are of few calls, and not by source."""
    size = {"most": 3, "history": 40} if quick else {"most": 40, "history": 400}
    return {
        name: {**counted(far.model, calls[:20] if quick else calls), **speedups(large, calls, **size, by_source=not quick)}
        for name, calls in recorded_calls(data).items()
    }
