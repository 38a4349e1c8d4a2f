"""The text and tool calls of one step, token by token.

A generation is in one of four phases. *Free* text watches for stop sequences and for the opener of a tool call, and may begin with
reasoning, in which both are only text. Inside a *call* and
inside an *answer* that has a schema, a grammar decides what may come. *Between* calls, only another call or the end may come: what a small
model says after its first call is mostly an invented result. Stop sequences apply to free text only; they would break JSON.
"""

from dataclasses import dataclass
from typing import TypeAlias, cast

import numpy as np
from pydantic import JsonValue

from ...protocols import FinishReason, InvalidOutput, StepRequest, ToolChoice
from ...protocols.validation import parse_json
from .engine import Logits, Mask, Vocabulary
from .output import Reasoning, TextFlow
from .protocol import StepEventKind
from .sampling import Confidence, Constraint, Grammars, Sampler, log_probability
from .template import CLOSER, OPENER

Event: TypeAlias = tuple[StepEventKind, JsonValue]


@dataclass(frozen=True, slots=True)
class ToolSyntax:
    """The tokens with which this model writes tool calls."""

    opener: tuple[int, ...]
    closer: tuple[int, ...]
    closer_on_new_line: tuple[int, ...]
    new_line: int
    opener_token: int | None
    """The opener's only token, where it is a single one."""

    @classmethod
    def of(cls, vocabulary: Vocabulary) -> "ToolSyntax":
        opener = tuple(vocabulary.tokenize_inside(OPENER))
        return cls(
            opener=opener,
            closer=tuple(vocabulary.tokenize_inside(CLOSER)),
            closer_on_new_line=tuple(vocabulary.tokenize_inside("\n" + CLOSER)),
            new_line=vocabulary.tokenize_inside("\n")[-1],
            opener_token=opener[0] if len(opener) == 1 else None,
        )


@dataclass(frozen=True, slots=True)
class WrittenCall:
    """A tool call that the output holds."""

    tool: str
    tokens: tuple[int, ...]
    """Tokens between opener and closer."""


class Generation:
    """Feed it the logits after each pass; it says what to decode next and collects what happened.

    Raises `Unsupported` if a schema cannot be enforced, `InvalidOutput` if the output cannot go on.
    """

    def __init__(
        self,
        request: StepRequest,
        *,
        vocabulary: Vocabulary,
        syntax: ToolSyntax,
        grammars: Grammars,
        most_tokens: int,
        stop: tuple[str, ...],
        reasoning_opened: bool = False,
    ) -> None:
        self._vocabulary = vocabulary
        self._syntax = syntax
        self._grammars = grammars
        self._most_tokens = most_tokens
        self._tools = () if request.tool_choice is ToolChoice.NONE else request.tools
        self._sampler = Sampler(request.temperature or 0.0, request.seed)
        self._flow = TextFlow((*stop, *((OPENER,) if self._may_open_in_text(request) else ())))
        self._reasoning = Reasoning(opened=reasoning_opened)
        self._confidence = Confidence()
        self._constraint: Constraint | None = None
        self._call = bytearray()
        self._blank: str | None = ""
        self._layout = " " if vocabulary.puts_blank_in_front else ""
        self._broke_line = False
        self.events: list[Event] = []
        self.call_tokens: list[int] = []
        """Tokens of the call that is being written, or was written last."""
        self.calls: list[WrittenCall] = []
        self.output_tokens = 0
        self.finished: FinishReason | None = None
        self.prologue: tuple[int, ...] = ()
        """Tokens that the output begins with whatever the model thinks; decoded along with the prompt."""
        self._phase = self._free
        self._begin(request)

    def advance(self, logits: Logits, tolerance: float = 0.0) -> list[int]:
        """Choose the next token; returns it and those that follow of necessity, to be decoded next. Empty once `finished`.

        Raises `NearTie`, and leaves everything as it was, if another token is within `tolerance` of a greedy choice.
        """
        self._sampler.tolerance = tolerance
        return self._count_output(self._phase(logits))

    @property
    def constraint(self) -> Constraint | None:
        """The grammar of the call or of the answer that is being written."""
        return self._constraint if self.in_call or self._phase == self._answer else None

    @property
    def call_text(self) -> str:
        return self._call.decode("utf-8", "ignore")

    @property
    def closer(self) -> tuple[int, ...]:
        """The tokens that follow the call that is being written."""
        on_new_line = self._call.startswith(b"\n") and not self._call.endswith(b"\n")
        return self._syntax.closer_on_new_line if on_new_line else self._syntax.closer

    @property
    def confidence(self) -> float | None:
        return self._confidence.value

    @property
    def in_call(self) -> bool:
        """True if the next token belongs to a tool call."""
        return self._phase == self._inside_call

    def _begin(self, request: StepRequest) -> None:
        if self._tools:
            self._grammars.call(self._tools)  # A schema that cannot be enforced is refused before anything is decoded.
        if request.tool_choice is ToolChoice.REQUIRED:
            self.prologue = tuple(self._count_output(self._open_call(self._syntax.opener)))
        elif request.output_schema is not None:
            self._constraint = self._grammars.answer(request.output_schema)
            self._phase = self._answer_or_call if self._tools else self._answer

    def _may_open_in_text(self, request: StepRequest) -> bool:
        return bool(self._tools) and request.output_schema is None

    def _count_output(self, tokens: list[int]) -> list[int]:
        self.output_tokens = min(self.output_tokens + len(tokens), self._most_tokens)
        if self.finished is None and self.output_tokens == self._most_tokens:
            # A call that is cut in the middle is dropped; one that only lacks its closer counts.
            self._finish(FinishReason.LENGTH)
        return [] if self.finished else tokens

    def _free(self, logits: Logits) -> list[int]:
        token = self._pick_free(logits)
        if token in self._vocabulary.ends:
            self._confidence.add(log_probability(logits, token))
            return self._finish(FinishReason.STOP)
        if token == self._syntax.opener_token and not self._reasoning.active:
            self._confidence.add(log_probability(logits, token))
            self._say_rest()
            return self._open_call((token,))
        piece = self._vocabulary.piece(token)
        shown = self._flow.feed(self._reasoning.feed(piece))
        if not self._reasoning.active:
            # The confidence is that of the answer, without the reasoning.
            self._confidence.add(log_probability(logits, token))
        self._say(shown.text)
        if shown.marker is None:
            return [token]
        if shown.marker == OPENER:
            surplus = min(shown.surplus, len(piece) - 1)
            # The token's bytes after the opener were not chosen under the call's grammar: the call begins right after the opener.
            return self._open_call(self._retokenize(piece[: len(piece) - surplus]) if surplus else (token,))
        return self._finish(FinishReason.STOP)

    def _pick_free(self, logits: Logits) -> int:
        token = self._sampler.pick(logits)
        if token == self._syntax.opener_token and not self._tools:
            allowed = np.ones(len(logits), dtype=np.bool_)
            allowed[token] = False
            return self._sampler.pick(logits, allowed)
        return token

    def _retokenize(self, piece: bytes) -> tuple[int, ...]:
        return tuple(self._vocabulary.tokenize_inside(piece.decode("utf-8", "ignore")))

    def _answer(self, logits: Logits) -> list[int]:
        constraint = self._current_constraint()
        return self._answer_goes_on(constraint.choose(logits, self._sampler), logits)

    def _answer_or_call(self, logits: Logits) -> list[int]:
        """Choose the first token of a step that may end in a call or in an answer with a schema."""
        constraint, opener = self._current_constraint(), self._syntax.opener[0]
        token = self._sampler.pick(logits)
        if token != opener and not constraint.accept(token):
            allowed = constraint.allowed()
            allowed[opener] = True
            token = self._sampler.pick(logits, allowed)
            if token != opener:
                constraint.accept(token)
        if token == opener:
            self._confidence.add(log_probability(logits, token))
            return self._open_call(self._syntax.opener)
        self._phase = self._answer
        return self._answer_goes_on(token, logits)

    def _answer_goes_on(self, token: int, logits: Logits) -> list[int]:
        self._confidence.add(log_probability(logits, token))
        if token in self._vocabulary.ends:
            return self._finish(FinishReason.STOP)
        self._say(self._flow.feed(self._vocabulary.piece(token)).text)
        return self._finish(FinishReason.STOP) if self._current_constraint().closed else [token]

    def _open_call(self, tokens: tuple[int, ...]) -> list[int]:
        """Enter a call; `tokens` are those of its opener that are still to be decoded."""
        if self._blank:
            self._blank = ""
        self._constraint = self._grammars.call(self._tools)
        self._call.clear()
        self.call_tokens.clear()
        self._phase = self._inside_call
        return list(tokens)

    def _inside_call(self, logits: Logits) -> list[int]:
        constraint = self._current_constraint()
        token = constraint.choose(logits, self._sampler)
        self._confidence.add(log_probability(logits, token))
        self._call += self._vocabulary.piece(token)
        self.call_tokens.append(token)
        if not constraint.complete:
            return [token]
        return [token, *self._close_call()]

    def _close_call(self) -> tuple[int, ...]:
        call = _parse_call(self._call)
        self.calls.append(WrittenCall(str(call["name"]), tuple(self.call_tokens)))
        self.events.append((StepEventKind.CALL, call))
        self._phase = self._between
        self._broke_line = False
        if not self._vocabulary.ends:
            self._finish(FinishReason.STOP)
        return self.closer

    def _between(self, logits: Logits) -> list[int]:
        token = self._sampler.pick(logits, self._allowed_between(len(logits)))
        if token in self._vocabulary.ends:
            return self._finish(FinishReason.STOP)
        if token == self._syntax.new_line:
            self._broke_line = True
            return [token]
        return self._open_call(self._syntax.opener)

    def _allowed_between(self, size: int) -> Mask:
        allowed = np.zeros(size, dtype=np.bool_)
        allowed[[self._syntax.opener[0], *self._vocabulary.ends]] = True
        allowed[self._syntax.new_line] = not self._broke_line
        return allowed

    def _current_constraint(self) -> Constraint:
        assert self._constraint is not None, "only phases with a constraint ask for it"
        return self._constraint

    def _say(self, text: str) -> None:
        """Show text. Blanks at the beginning wait for something to follow: before a call they are only layout."""
        if self._blank is not None and text:
            text = self._blank + text
            self._blank = None if text.strip() else text
            text = text.removeprefix(self._layout) if self._blank is None else ""
        if text:
            self.events.append((StepEventKind.TEXT, text))

    def _say_rest(self) -> None:
        self._say(self._flow.feed(self._reasoning.rest()).text)
        self._say(self._flow.rest())

    def _finish(self, reason: FinishReason) -> list[int]:
        """End with `reason`, or with `TOOL_CALLS` if there are complete calls that wait for their results."""
        inside_call = self.in_call
        self._say_rest()
        if self._blank and not self.calls:
            self.events.append((StepEventKind.TEXT, self._blank))
        self.finished = FinishReason.TOOL_CALLS if self.calls and not inside_call else reason
        return []


def _parse_call(call: bytearray) -> dict[str, JsonValue]:
    try:
        return cast("dict[str, JsonValue]", parse_json(call.decode()))
    except ValueError as error:
        raise InvalidOutput(f"the model's tool call is not JSON: {error}") from error
