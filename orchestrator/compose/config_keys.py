"""Which keys the sections of a configuration have, as its models say."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

_CONTAINERS = (Mapping, Sequence, dict, list, tuple)
"""Their entries have a name or a number of their own between the section and its keys."""


def fields_at(root: type[BaseModel], section: Sequence[str], provider: str = "") -> dict[str, FieldInfo]:
    """Return the keys of a section. If it may be one of several models, return those of the given provider, or of all."""
    found: dict[str, FieldInfo] = {}
    for model in _models_at(root, section):
        field = model.model_fields.get("provider")
        if not provider or field is None or provider in get_args(field.annotation):
            found.update(model.model_fields)
    return found


def _models_at(model: type[BaseModel], section: Sequence[str]) -> Iterator[type[BaseModel]]:
    if not section:
        yield model
        return
    field = model.model_fields.get(section[0])
    if field is None:
        return
    depth = 2 if any(get_origin(part) in _CONTAINERS for part in (field.annotation, *get_args(field.annotation))) else 1
    if depth <= len(section):
        for inner in _models_in(field.annotation):
            yield from _models_at(inner, section[depth:])


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:  # noqa: ANN401 - any type expression
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)
