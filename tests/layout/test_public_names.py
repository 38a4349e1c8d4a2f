"""Every name that a user needs is exported by `nearfar`."""

import ast
import importlib
import importlib.metadata
import inspect
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

import nearfar
from scripts import stubs

OPAQUE = frozenset(
    ("AnswerCache", "BudgetBook", "EffectConnection", "Embedder", "Hub", "MemoryItem", "MemoryStore", "Metrics", "Observable")
    + ("PolicyFile", "Principal", "PrivacyRecords", "Ranking", "RunStore", "Server", "Session", "TaskContext", "TaskGraph")
    + ("TaskNodes", "TaskState", "TraceStore")
)
"""Users get these from elsewhere, and call the methods that the pages of their rooms describe; the types of all others are internal."""


def test_every_public_name_resolves() -> None:
    assert [name for name in nearfar.__all__ if not hasattr(nearfar, name)] == []


def test_public_names_are_sorted_and_listed_by_dir() -> None:
    names = [name for name in nearfar.__all__ if name != "__version__"]
    assert names == sorted(set(names))
    assert set(nearfar.__all__) <= set(dir(nearfar))


@pytest.mark.parametrize("path", stubs.STUBS, ids=lambda path: path.parent.name)
def test_type_checkers_see_the_same_names(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == stubs.stub(stubs.STUBS[path]), "run `make reference`"


def test_the_contract_declares_its_names_sorted() -> None:
    contract = importlib.import_module("nearfar.protocols")
    names = list(contract.__all__)
    assert names == sorted(set(names))
    assert [name for name in names if not hasattr(contract, name)] == []


def test_every_type_in_a_public_signature_is_public() -> None:
    public = {name: getattr(nearfar, name) for name in nearfar.__all__}
    missing = {
        f"{name}: {named.__module__}.{named.__qualname__}"
        for name, value in public.items()
        if name not in OPAQUE
        for function in signatures(value)
        for named in types_named(function)
        if public.get(named.__name__) is not named
    }
    assert sorted(missing) == []


def signatures(value: object) -> Iterator[Callable[..., Any] | type]:
    """Yield the public functions and the annotated fields of a public name."""
    if inspect.isfunction(value):
        yield value
    if not inspect.isclass(value) or issubclass(value, Enum):
        return
    yield value
    for name, member in dict(vars(value)).items():
        function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        if inspect.isfunction(function) and (not name.startswith("_") or name in ("__init__", "__call__")):
            yield function


def types_named(annotated: Callable[..., Any] | type) -> Iterator[type]:
    """Yield the types of Nearfar that its annotations name."""
    fields = inspect.get_annotations(annotated)
    hints = get_type_hints(annotated, localns=for_type_checkers(annotated.__module__))
    for name, hint in hints.items():
        if name in fields and not name.startswith("_"):
            yield from types_in(hint)


def types_in(hint: object) -> Iterator[type]:
    if isinstance(hint, types.GenericAlias) or get_args(hint):
        for argument in get_args(hint):
            yield from types_in(argument)
    elif isinstance(hint, list):
        for argument in hint:
            yield from types_in(argument)
    elif isinstance(hint, type) and hint.__module__.startswith("nearfar."):
        yield hint


@cache
def for_type_checkers(module: str) -> dict[str, object]:
    """Return the names that a module imports for type checkers alone."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    blocks = (node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    imports = [node for block in blocks for node in block.body]
    package = sys.modules[module].__package__
    whole = [alias.name for node in imports if isinstance(node, ast.Import) for alias in node.names]
    found: dict[str, object] = {name: importlib.import_module(name) for name in whole if "." not in name}
    for node in (node for node in imports if isinstance(node, ast.ImportFrom)):
        source = importlib.import_module("." * node.level + (node.module or ""), package)
        found |= {alias.asname or alias.name: getattr(source, alias.name) for alias in node.names if hasattr(source, alias.name)}
    return found


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        nearfar.no_such_name  # type: ignore[attr-defined]  # noqa: B018 - the access is what is tested


def test_the_version_is_that_of_the_distribution() -> None:
    assert nearfar.__version__ == importlib.metadata.version("nearfar")


def test_the_package_runs_as_the_command_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "nearfar", "--version"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert nearfar.__version__ in result.stdout, result.stderr
