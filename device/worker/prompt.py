"""From a request to prompt tokens.

Text that others wrote must not reach the model as control tokens: a tool result that contains `<|im_end|>` would otherwise end its own
turn and open another. Such literals are therefore cut into single characters before they are tokenised. All other text, template and
content alike, is tokenised in one piece, exactly as it was in training.

Only the worker process imports this module.
"""

import re
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final, TypeVar

from pydantic import BaseModel, JsonValue

from ...protocols import ContextOverflow, InvalidRequest, StepRequest, ToolChoice
from .engine import Model
from .output import REASONING_END, REASONING_START, opens_reasoning
from .template import CLOSER, OPENER, ChatTemplate, native, plain

_PRIVATE_USE: Final = range(0xE000, 0xF900)

_Value = TypeVar("_Value", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Prompt:
    """The text, as tokens, that a step's output continues."""

    tokens: list[int]
    opens_reasoning: bool
    """It ends inside the model's reasoning."""


class PromptBuilder:
    """Renders requests with the model's template and tokenises them.

    Raises `ModelError` if the template is unusable.
    """

    def __init__(self, model: Model, *, context_tokens: int) -> None:
        self._vocabulary = model.vocabulary
        self._most_bytes = context_tokens * model.vocabulary.longest_token
        self._character = lru_cache(model.vocabulary.tokenize_inside)
        self.template = ChatTemplate(model.chat_template, start_text=self._vocabulary.start_text, end_text=self._vocabulary.end_text)

    def prompt(self, request: StepRequest) -> Prompt:
        """Return the prompt of a step.

        Raises `InvalidRequest` if it is empty, `Unsupported` if the template refuses the conversation, `ContextOverflow` if it is so
        long
        that it need not be tokenised to see that it does not fit.
        """
        if not any(message.text.strip() or message.tool_calls or message.tool_result for message in request.messages):
            raise InvalidRequest("the prompt is empty", hint="give at least one message with text")
        tools = () if request.tool_choice is ToolChoice.NONE else request.tools
        cut = _unused_character(request)
        messages = [self._defuse_model(message, cut) for message in request.messages]
        convert = native if self.template.shows_tools else plain
        conversation = convert(messages, [self._defuse_model(tool, cut) for tool in tools])
        # A grammar that holds from the first token leaves no room for reasoning.
        constrained = request.output_schema is not None or request.tool_choice is ToolChoice.REQUIRED
        rendered = self.template.render(conversation, may_reason=not constrained)
        pieces = rendered.split(cut)
        self._check_size(pieces)
        return Prompt(self._tokenize(pieces), opens_reasoning(rendered))

    def _tokenize(self, pieces: list[str]) -> list[int]:
        first, *others = pieces
        tokens = self._vocabulary.tokenize(first)
        for piece in others:
            tokens += self._character(piece) if len(piece) == 1 else self._vocabulary.tokenize_inside(piece)
        start = self._vocabulary.start
        # Many templates write the start token themselves.
        return tokens if start is None or tokens[:1] == [start] else [start, *tokens]

    def _check_size(self, pieces: list[str]) -> None:
        size = sum(len(piece.encode()) for piece in pieces)
        if size > self._most_bytes:
            raise ContextOverflow(f"the prompt has {size} bytes, more than the context can hold", hint="shorten the conversation")

    def _defuse_model(self, value: _Value, cut: str) -> _Value:
        if not self._control_text.search(value.model_dump_json()):
            return value
        return type(value).model_validate(self._defuse(value.model_dump(), cut))

    def _defuse(self, value: JsonValue, cut: str) -> JsonValue:
        if isinstance(value, str):
            return self._control_text.sub(lambda match: cut.join([*match[0], ""]), value)
        if isinstance(value, list | tuple):
            return [self._defuse(item, cut) for item in value]
        if isinstance(value, dict):
            return {str(self._defuse(key, cut)): self._defuse(item, cut) for key, item in value.items()}
        return value

    @cached_property
    def _control_text(self) -> re.Pattern[str]:
        texts = {text for text in self._vocabulary.control_texts if len(text) > 1}
        texts |= {text for text in (OPENER, CLOSER, REASONING_START, REASONING_END) if len(self._vocabulary.tokenize(text)) == 1}
        longest_first = sorted(texts, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")


def _unused_character(request: StepRequest) -> str:
    """Return a character that occurs nowhere in the request, to mark the cuts with."""
    text = request.model_dump_json()
    for code in _PRIVATE_USE:
        if chr(code) not in text:
            return chr(code)
    raise InvalidRequest("the messages use every private-use character", hint="remove characters U+E000 to U+F8FF")
