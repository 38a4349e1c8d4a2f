"""Fields that several APIs share: sampling, effort, and how a conversation begins."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic import ValidationError

from ...protocols import Effort
from ..task.sampling import Sampling
from .errors import BadField

_SEEDS: Final = 2**31
_BETWEEN: Final = {"type": "text", "text": "\n\n"}


def sampling_of(given: Mapping[str, tuple[str, Any]]) -> Sampling:
    """Return the sampling of a turn. Raise `BadField` for a value that cannot be used.

    Args:
        given: by our names, the name of the client's field and its value.
    """
    values = {ours: _value(ours, value) for ours, (_, value) in given.items()}
    try:
        return Sampling.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        theirs = given[str(first["loc"][0])][0]
        raise BadField(f"{theirs}: {first['msg']}", param=theirs) from None


def _value(name: str, value: Any) -> Any:  # noqa: ANN401 - as it came
    if name == "seed" and isinstance(value, int):
        return value % _SEEDS
    return (value,) if name == "stop" and isinstance(value, str) else value


def effort_of(given: object, param: str) -> Effort | None:
    """Return how long the model may think; None: the policy decides. Raise `BadField` that names `param`."""
    if given is None:
        return None
    try:
        return Effort(str(given))
    except ValueError:
        raise BadField(f"{param} is one of {', '.join(Effort)}", param=param) from None


def with_one_system(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return messages of which only the first may be a system message: those at the beginning are joined, and later ones become the
    user's, as chat templates of many models refuse a second one."""
    first = next((place for place, message in enumerate(messages) if message["role"] != "system"), len(messages))
    later = [{**message, "role": "user"} if message["role"] == "system" else message for message in messages[first:]]
    if first < 2:
        return [*messages[:first], *later]
    parts = [part for message in messages[:first] for part in (_BETWEEN, *_parts(message["content"]))]
    return [{"role": "system", "content": parts[1:]}, *later]


def _parts(content: object) -> list[object]:
    return content if isinstance(content, list) else [{"type": "text", "text": content or ""}]


def opening_of(messages: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Return how a conversation begins: its system message, and the first one of the user."""
    roles: dict[str, Any] = {}
    for message in messages:
        if message["role"] in ("system", "user"):
            roles.setdefault(message["role"], message["content"])
    return sorted(roles.items())
