"""From a request to prompt tokens, through the chat template in the model file.

Text that others wrote must not reach the model as control tokens: a tool result that contains `<|im_end|>` would otherwise end its own
turn and open another. Such literals are therefore cut into single characters before they are tokenised. All other text, template and
content alike, is tokenised in one piece, exactly as it was in training.

A template is a Jinja program of a stranger. A sandbox keeps it from reaching Python, computing without end, or filling the memory with one
operation.

Only the worker process imports this module.
"""

import json
import re
import signal
from collections.abc import Iterator, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property, lru_cache
from itertools import groupby
from types import FrameType
from typing import Any, Final, NoReturn, TypeAlias, TypeVar

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from pydantic import BaseModel, JsonValue

from ...protocols import (
    ContextOverflow,
    Effort,
    InvalidRequest,
    Message,
    ModelError,
    StepRequest,
    ToolCall,
    ToolChoice,
    ToolResult,
    ToolSpec,
    Unsupported,
)
from ..hardware.processors import limited_memory
from .engine import ImagePart, ImageReader, Model, is_image
from .generation import CLOSER, OPENER, REASONING_END, REASONING_START, opens_reasoning, without_reasoning

TemplateMessage: TypeAlias = dict[str, JsonValue]

_EXPLANATION: Final = """\
You can call these tools. Each line describes one, as JSON:
<tools>
{tools}
</tools>
To call a tool, answer with exactly this, once for each call:
{opener}{{"name": "the tool's name", "arguments": {{"an argument": "its value"}}}}{closer}
Results come back between <tool_response> and </tool_response>."""


@dataclass(frozen=True, slots=True)
class TemplateInput:
    """Messages and tools in the form in which a template takes them."""

    messages: tuple[TemplateMessage, ...]
    tools: tuple[TemplateMessage, ...] = ()


def native(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> TemplateInput:
    """Convert messages for templates that show tools and calls themselves."""
    return TemplateInput(tuple(_native(message) for message in messages), tuple(_tool(tool) for tool in tools))


def plain(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> TemplateInput:
    """Convert messages for templates that know only system, user and assistant, in turn: explain tools and write calls as text."""
    turns = [_plain(message) for message in messages]
    if tools:
        explanation = _EXPLANATION.format(tools="\n".join(_compact(_tool(tool)) for tool in tools), opener=OPENER, closer=CLOSER)
        turns.insert(0, ("system", explanation))
    merged = [(role, "\n\n".join(text for _, text in group if text)) for role, group in groupby(turns, key=lambda turn: turn[0])]
    return TemplateInput(tuple({"role": role, "content": text} for role, text in merged))


def without_system(conversation: TemplateInput) -> TemplateInput:
    """Move system text into the user's, for templates that show no system message."""
    turns: list[TemplateMessage] = []
    for message in conversation.messages:
        turn = {**message, "role": "user"} if message["role"] == "system" else message
        if turns and turns[-1]["role"] == turn["role"] == "user":
            turns[-1] = {**turn, "content": f"{turns[-1]['content']}\n\n{turn['content']}"}
        else:
            turns.append(turn)
    return TemplateInput(tuple(turns), conversation.tools)


def _native(message: Message) -> TemplateMessage:
    result = message.tool_result
    if result is not None:
        return {"role": "tool", "name": result.name, "tool_call_id": result.call_id, "content": result.content}
    if not message.tool_calls:
        return {"role": message.role, "content": message.text}
    calls: list[JsonValue] = [{"type": "function", "id": call.id, "function": _function(call)} for call in message.tool_calls]
    return {"role": "assistant", "content": message.text, "tool_calls": calls}


def _plain(message: Message) -> tuple[str, str]:
    result = message.tool_result
    if result is not None:
        return "user", f"<tool_response>{result.content}</tool_response>"
    calls = [f"{OPENER}{_compact(_function(call))}{CLOSER}" for call in message.tool_calls]
    return message.role, "\n".join([message.text, *calls] if message.text else calls)


def _function(call: ToolCall) -> dict[str, JsonValue]:
    return {"name": call.name, "arguments": dict(call.arguments)}


def _tool(tool: ToolSpec) -> TemplateMessage:
    return {"type": "function", "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters}}


def _compact(value: JsonValue) -> str:
    return json.dumps(value, ensure_ascii=False)


_PROBE_CALL: Final = ToolCall(id="123456789", name="probe_tool", arguments={"probe_argument": "probe_value"})
_PROBE_RESULT: Final = "probe_result"
PROBE: Final = native(
    (
        Message.user("probe"),
        Message.assistant("", (_PROBE_CALL,)),
        Message.tool(ToolResult(call_id=_PROBE_CALL.id, name=_PROBE_CALL.name, content=_PROBE_RESULT)),
    ),
    (ToolSpec(name=_PROBE_CALL.name),),
)
"""A conversation that shows how a template writes calls."""
_SHOWN_CALL: Final = re.compile(rf"{OPENER}\s*(.*?)\s*{CLOSER}", re.DOTALL)


def shows_probe(rendered: str) -> bool:
    """Return True if `PROBE` was rendered whole, with its call in the format that the model is to write."""
    # Templates that explain the format show a pattern of it, too.
    return _PROBE_RESULT in rendered and any(_is_probe_call(text) for text in _SHOWN_CALL.findall(rendered))


def _is_probe_call(text: str) -> bool:
    try:
        return bool(json.loads(text) == _function(_PROBE_CALL))
    except ValueError:
        return False


_SECONDS: Final = 5.0
"""CPU time; ordinary templates take milliseconds."""
_BYTES: Final = 1 << 30
_LONGEST_PRODUCT: Final = 1 << 20
_MOST_BITS: Final = 1 << 12


class Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's own sandbox, with bounds on the operations that one expression can make as large as it likes."""

    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:  # noqa: ANN401 - Jinja's signature
        """Refuse products and powers that are too large; Jinja calls this for the intercepted operators."""
        too_large = _is_large_product(left, right) if operator == "*" else _is_large_power(left, right)
        if too_large:
            raise jinja2.TemplateError(f"the template computes a value that is too large, with {operator}")
        return super().call_binop(context, operator, left, right)


@contextmanager
def bounded() -> Iterator[None]:
    """Limit the CPU time of what is done inside, by a signal, and the process's further memory: only for the main thread.

    Raises `ModelError` when the time is over, `MemoryError` beyond the memory.
    """
    handler = signal.signal(signal.SIGVTALRM, _give_up)
    signal.setitimer(signal.ITIMER_VIRTUAL, _SECONDS)
    try:
        with limited_memory(_BYTES):
            yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, handler)


def _give_up(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise ModelError(f"the model's chat template computed for more than {_SECONDS:g} s", hint="use another model file")


def _is_large_product(left: object, right: object) -> bool:
    pairs = ((left, right), (right, left))
    return any(isinstance(one, Sized) and isinstance(other, int) and len(one) * other > _LONGEST_PRODUCT for one, other in pairs)


def _is_large_power(left: object, right: object) -> bool:
    return isinstance(left, int) and isinstance(right, int) and left.bit_length() * right > _MOST_BITS


_LONGEST: Final = 1 << 18
_FALLBACK: Final = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant{{ '\\n' }}"
)
FALLBACK_STOP: Final = "<|im_end|>"
"""Ends a turn where the model has no template of its own, and so no end token for it."""

_FAULTS: Final = (jinja2.TemplateError, ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError)
"""Exceptions of a template while it is rendered: its own mistakes, or its refusal of a conversation."""


class ChatTemplate:
    """A model's template, or a plain ChatML one where the model has none.

    Raises `ModelError` if it is too long, no valid Jinja, or computes without end.
    """

    def __init__(self, source: str | None, *, start_text: str, end_text: str) -> None:
        if source is not None and len(source) > _LONGEST:
            raise ModelError(f"the model's chat template has {len(source)} characters, more than {_LONGEST}", hint="use another model file")
        self.is_fallback = source is None
        self._variables: dict[str, object] = {"bos_token": start_text, "eos_token": end_text}
        try:
            with bounded():
                self._template = _environment().from_string(_FALLBACK if source is None else source)
        except (jinja2.TemplateError, RecursionError) as error:
            raise ModelError(f"the model's chat template is not valid Jinja: {error}", hint="use another model file") from error
        self.shows_tools = source is not None and OPENER in source and self._writes_calls_as_json()
        """It shows tools, calls and results itself, and calls in our own format."""

    def render(self, conversation: TemplateInput, *, may_reason: bool = True) -> str:
        """Render the prompt for the assistant's next turn. If the model may not reason, tell it so, and close the reasoning at once.

        Raises `Unsupported` if the template refuses the conversation, `ModelError` if it computes without end.
        """
        with bounded():
            rendered = self._render_merged(conversation, may_reason)
        return rendered if may_reason else without_reasoning(rendered)

    def _render_merged(self, conversation: TemplateInput, may_reason: bool) -> str:
        """Move the system text to the user if the template refuses it, or leaves it out without a word."""
        merged, refusal = without_system(conversation), None
        try:
            rendered = self._render(conversation, may_reason)
            if merged == conversation or _shows_system(conversation, rendered):
                return rendered
        except _FAULTS as error:
            refusal = error
        try:
            return self._render(merged, may_reason)
        except _FAULTS as error:
            refusal = refusal or error  # The first refusal is the more telling one.
        hint = "check the order of roles in the messages, or use another model"
        raise Unsupported(
            f"the model's chat template cannot render this conversation: {str(refusal) or type(refusal).__name__}", hint=hint
        ) from refusal

    def _render(self, conversation: TemplateInput, may_reason: bool) -> str:
        messages = [dict(message) for message in conversation.messages]
        tools = list(conversation.tools) or None
        # If it is undefined, each template has its own default.
        variables = self._variables if may_reason else {**self._variables, "enable_thinking": False}
        rendered = self._template.render(messages=messages, tools=tools, add_generation_prompt=True, **variables)
        rendered.encode()  # Raises for half a surrogate pair written by the template, which no tokenizer takes.
        return rendered

    def _writes_calls_as_json(self) -> bool:
        """Return True if the template writes calls in our own format. Others, as Qwen3-Coder's and GLM's, use the same markers with
        another format."""
        try:
            with bounded():
                return shows_probe(self._render(PROBE, True))
        except _FAULTS:
            return False


def _shows_system(conversation: TemplateInput, rendered: str) -> bool:
    return all(str(message["content"]).strip() in rendered for message in conversation.messages if message["role"] == "system")


class _Generation(Extension):
    """`{% generation %}`: some templates mark the assistant's text so for training. Here it changes nothing."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> Sandbox:
    environment = Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation])
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False) -> str:  # noqa: ANN401 - called by templates, with json.dumps' own parameters
    # Jinja's own filter escapes <, > and & for HTML, which models have never seen.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


_PRIVATE_USE: Final = range(0xE000, 0xF900)

_Value = TypeVar("_Value", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Prompt:
    """The text, as tokens, that a step's output continues."""

    tokens: list[int]
    opens_reasoning: bool
    """It ends inside the model's reasoning."""
    images: dict[int, ImagePart] = field(default_factory=dict)
    """Parts of images among the tokens, by their first cell."""

    @property
    def size(self) -> int:
        """Return the entries that it takes in the cache. An image may take more of them than positions among the tokens."""
        return len(self.tokens) + sum(image.tokens - image.positions for image in self.images.values())


class PromptBuilder:
    """Renders requests with the model's template and tokenises them.

    Raises `ModelError` if the template is unusable.
    """

    def __init__(self, model: Model, *, context_tokens: int, images: ImageReader | None = None) -> None:
        self._images = images
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
        if not any(map(_says_something, request.messages)):
            raise InvalidRequest("the prompt is empty", hint="give at least one message with text")
        tools = () if request.tool_choice is ToolChoice.NONE else request.tools
        cut, mark = _unused_characters(request)
        messages = [self._defuse_model(_marked(message, mark), cut) for message in request.messages]
        convert = native if self.template.shows_tools else plain
        conversation = convert(messages, [self._defuse_model(tool, cut) for tool in tools])
        # A grammar that holds from the first token leaves no room for reasoning.
        constrained = request.output_schema is not None or request.tool_choice is ToolChoice.REQUIRED
        rendered = self.template.render(conversation, may_reason=not constrained and request.effort is not Effort.NONE)
        first, *others = (text.split(cut) for text in rendered.split(mark))
        self._check_size([*first, *(piece for pieces in others for piece in pieces)])
        prompt = Prompt(self._tokenize(first), opens_reasoning(rendered))
        self._add_images(prompt, request, others)
        return prompt

    def _add_images(self, prompt: Prompt, request: StepRequest, texts: list[list[str]]) -> None:
        """Add each image, and the text behind it."""
        attached = [attachment for message in request.messages for attachment in message.attachments]
        if len(attached) != len(texts):
            raise Unsupported("the model's chat template does not show each image once", hint="use another model")
        for image, pieces in zip(attached, texts, strict=True):
            assert self._images is not None, "the agent has refused images that its model does not read"
            for number, part in enumerate(self._images.read(image)):
                if isinstance(part, ImagePart):
                    cells = part.cells(f"{image.digest} {number}".encode())
                    prompt.images[cells[0]] = part
                    part = cells
                prompt.tokens.extend(part)
            prompt.tokens.extend(self._tokenize_inside(pieces))
        if texts and is_image(prompt.tokens[-1]):
            raise Unsupported("the model's chat template ends with the image", hint="use another model")

    def _tokenize(self, pieces: list[str]) -> list[int]:
        first, *others = pieces
        tokens = [*self._vocabulary.tokenize(first), *self._tokenize_inside(others)]
        start = self._vocabulary.start
        # Many templates write the start token themselves.
        return tokens if start is None or tokens[:1] == [start] else [start, *tokens]

    def _tokenize_inside(self, pieces: list[str]) -> list[int]:
        tokens: list[int] = []
        for piece in filter(None, pieces):
            tokens += self._character(piece) if len(piece) == 1 else self._vocabulary.tokenize_inside(piece)
        return tokens

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


def _says_something(message: Message) -> bool:
    return bool(message.text.strip() or message.attachments or message.tool_calls or message.tool_result)


def _marked(message: Message, mark: str) -> Message:
    """Return the message with a mark in its text for each image."""
    return message.with_attachments_as(lambda _: mark)


def _unused_characters(request: StepRequest) -> tuple[str, str]:
    """Return two characters that occur nowhere in the request, to mark cuts and images with."""
    text = request.model_dump_json()
    unused = [chr(code) for code in _PRIVATE_USE if chr(code) not in text][:2]
    if len(unused) == 2:
        return unused[0], unused[1]
    raise InvalidRequest("the messages use every private-use character", hint="remove characters U+E000 to U+F8FF")
