"""Reads parts of a request's body: objects, lists, texts and JSON Schemas. Each error names the field."""

from collections.abc import Mapping, Sequence
from typing import Any

from .errors import BadField
from .requests import field

Fields = Mapping[str, Any]
"""A JSON object that a client has sent."""


def wrong(param: str, problem: str, *, hint: str = "") -> BadField:
    """Return the error of the field at `param`, such as `tools[0].name`."""
    return BadField(f"{param}: {problem}", param=param, hint=hint)


def as_object(value: object, param: str) -> Fields:
    """Return a value that has to be an object."""
    if not isinstance(value, Mapping):
        raise wrong(param, f"it must be an object, not {type(value).__name__}")
    return value


def as_objects(body: Fields, name: str) -> Sequence[Fields]:
    """Return a list of objects; an empty one where it is left out."""
    given: list[object] = field(body, name, list, "a list", [])
    return [as_object(each, f"{name}[{place}]") for place, each in enumerate(given)]


def required_text(body: Fields, name: str, param: str) -> str:
    """Return a text that has to be there; `param` is the place of the object that holds it."""
    value = body.get(name)
    if not isinstance(value, str) or not value:
        raise wrong(f"{param}.{name}", "it must be a text that is not empty")
    return value


def number(body: Fields, name: str) -> float | None:
    """Return a number; None where it is left out."""
    value: float | None = field(body, name, (int, float), "a number")
    return value


def whole_number(body: Fields, name: str) -> int | None:
    """Return a whole number; None where it is left out."""
    value: int | None = field(body, name, int, "a whole number")
    return value


def choice_of(value: object, known: Sequence[str], param: str) -> str:
    """Return a text that has to be one of those `known`."""
    if value not in known:
        raise wrong(param, f"{value!r} is none of {', '.join(known)}")
    return str(value)


def sampling_of(**given: object) -> dict[str, Any]:
    """Return the option `sampling` with what was given; no option if nothing was."""
    known = {name: value for name, value in given.items() if value is not None}
    return {"sampling": known} if known else {}


def read_schema(given: object, param: str) -> dict[str, Any] | None:
    """Return the JSON Schema of an answer, from `text.format` or `response_format`; None for free text."""
    if given is None:
        return None
    wanted = as_object(given, param)
    kind = choice_of(wanted.get("type"), ("text", "json_object", "json_schema"), f"{param}.type")
    if kind == "text":
        return None
    return {"type": "object"} if kind == "json_object" else dict(as_object(wanted.get("schema"), f"{param}.schema"))


def joined_system(messages: Sequence[Fields]) -> list[Fields]:
    """Return the messages with all instructions in one system message in front: chat templates of many models refuse a second one."""
    texts = [text for message in messages if message["role"] == "system" if (text := plain(message["content"])).strip()]
    rest = [message for message in messages if message["role"] != "system" and (message["content"] or message["role"] != "user")]
    return [*([{"role": "system", "content": "\n\n".join(texts)}] if texts else []), *rest]


def opening_of(messages: Sequence[Fields]) -> list[Any]:
    """Return how a conversation begins: its instructions and the user's first message."""
    first = next((message["content"] for message in messages if message["role"] == "user"), "")
    return [message["content"] for message in messages if message["role"] == "system"] + [first]


def plain(content: object) -> str:
    """Return the text of a content: a text, or a list of parts."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "\n\n".join(str(part["text"]) for part in parts if isinstance(part, Mapping) and part.get("text"))
