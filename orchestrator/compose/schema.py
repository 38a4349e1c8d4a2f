"""The JSON Schema of nearfar.toml, with a description of each key: editors show it while the file is written."""

import ast
import inspect
import textwrap
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, get_args

from pydantic import BaseModel

from .config import Config

JsonObject = dict[str, Any]


def config_schema() -> JsonObject:
    """Return the JSON Schema (draft 2020-12) of nearfar.toml.

    The descriptions are the docstrings of the sections' fields, which are read from the source: nothing else needs them at run time.
    Where the source is not installed, there are none.
    """
    schema = Config.model_json_schema()
    _describe(schema, Config)
    for section in _sections(Config, {Config}):
        if (found := schema["$defs"].get(section.__name__)) is not None:
            _describe(found, section)
    return {**schema, "$schema": "https://json-schema.org/draft/2020-12/schema", "title": "nearfar.toml"}


def _describe(schema: JsonObject, section: type[BaseModel]) -> None:
    """Add the descriptions of a section's keys to its schema."""
    known = docstrings(section)
    for name, key in schema.get("properties", {}).items():
        if name in known:
            key.setdefault("description", known[name])


def docstrings(section: type[BaseModel]) -> dict[str, str]:
    """Return the docstrings behind the fields of a section and of the classes that it extends, by the fields' names.

    Where their source is not installed, there are none.
    """
    found: dict[str, str] = {}
    for kind in reversed(section.__mro__):
        if issubclass(kind, BaseModel) and kind is not BaseModel:
            found.update(_fields(kind))
    return found


def _fields(kind: type[BaseModel]) -> Iterator[tuple[str, str]]:
    try:
        source = inspect.getsource(kind)
    except OSError:  # only the compiled modules are there
        return
    (node,) = ast.parse(textwrap.dedent(source)).body
    assert isinstance(node, ast.ClassDef)
    for field, text in pairwise(node.body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
            value = ast.literal_eval(text.value)
            yield field.target.id, " ".join(str(value).split())


def _sections(section: type[BaseModel], known: set[type[BaseModel]]) -> Iterator[type[BaseModel]]:
    """Yield the sections that a section's fields are made of, each once."""
    for field in section.model_fields.values():
        for kind in _classes(field.annotation):
            if issubclass(kind, BaseModel) and kind not in known:
                known.add(kind)
                yield kind
                yield from _sections(kind, known)


def _classes(annotation: object) -> Iterator[type]:
    """Yield the classes in an annotation, such as those of a union."""
    if isinstance(annotation, type) and not get_args(annotation):
        yield annotation
    for part in get_args(annotation):
        yield from _classes(part)
