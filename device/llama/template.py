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
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ...protocols import InvalidRequest, ModelError
from .conversation import OPENER, Conversation, without_system

_LONGEST: Final = 1 << 18
_FALLBACK: Final = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant{{ '\\n' }}"
)
FALLBACK_STOP: Final = "<|im_end|>"
"""Ends a turn where the model has no template of its own, and so no end token for it."""

_FAULTS: Final = (jinja2.TemplateError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What a template's own mistakes, or its refusal of a conversation, raise while it is rendered."""


class ChatTemplate:
    """A model's template, or a plain ChatML one where the model has none.

    Raises `ModelError` if it is too long or no valid Jinja.
    """

    def __init__(self, source: str | None, *, start_text: str, end_text: str) -> None:
        if source is not None and len(source) > _LONGEST:
            raise ModelError(f"the model's chat template has {len(source)} characters, more than {_LONGEST}", hint="use another model file")
        self.is_fallback = source is None
        self.shows_tools = source is not None and OPENER in source
        self._variables = {"bos_token": start_text, "eos_token": end_text}
        try:
            self._template = _environment().from_string(_FALLBACK if source is None else source)
        except jinja2.TemplateError as error:
            raise ModelError(f"the model's chat template is not valid Jinja: {error}", hint="use another model file") from error

    def render(self, conversation: Conversation) -> str:
        """The prompt for the assistant's next turn.

        Raises `InvalidRequest` if the template refuses the conversation.
        """
        try:
            return self._render(conversation)
        except _FAULTS as first:
            merged = without_system(conversation)
            try:
                if merged is not conversation:
                    return self._render(merged)
            except _FAULTS:
                pass  # The first refusal says more.
            hint = "check the order of roles in the messages, or use another model"
            raise InvalidRequest(f"the model's chat template cannot show this conversation: {first}", hint=hint) from first

    def _render(self, conversation: Conversation) -> str:
        messages = [dict(message) for message in conversation.messages]
        tools = list(conversation.tools) or None
        return self._template.render(messages=messages, tools=tools, add_generation_prompt=True, **self._variables)


class _Generation(Extension):
    """`{% generation %}`: some templates mark the assistant's text so for training. Here it changes nothing."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation])
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
