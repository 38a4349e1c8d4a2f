"""Chat templates: Jinja programs that come inside model files, from strangers, and are rendered in a sandbox.

Only the worker process imports this module.
"""

import json
from datetime import datetime
from typing import Any, Final, NoReturn

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node
from jinja2.parser import Parser

from ...protocols import ModelError, Unsupported
from .conversation import OPENER, PROBE, Conversation, shows_probe, without_system
from .reasoning import without_reasoning
from .template_sandbox import Sandbox, bounded

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

    def render(self, conversation: Conversation, *, may_reason: bool = True) -> str:
        """Render the prompt for the assistant's next turn. If the model may not reason, tell it so, and close the reasoning at once.

        Raises `Unsupported` if the template refuses the conversation, `ModelError` if it computes without end.
        """
        with bounded():
            rendered = self._render_merged(conversation, may_reason)
        return rendered if may_reason else without_reasoning(rendered)

    def _render_merged(self, conversation: Conversation, may_reason: bool) -> str:
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

    def _render(self, conversation: Conversation, may_reason: bool) -> str:
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


def _shows_system(conversation: Conversation, rendered: str) -> bool:
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
