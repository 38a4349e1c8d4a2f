"""The reference pages are what the docstrings and the commands say."""

import inspect
import re
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any

import pytest
from pages import anchors_of

import nearfar
from scripts import reference


def test_the_api_page_is_up_to_date() -> None:
    assert reference.API.read_text(encoding="utf-8") == reference.api(), "run `make reference`"


def test_the_page_of_commands_is_up_to_date() -> None:
    assert reference.CLI.read_text(encoding="utf-8") == reference.cli(), "run `make reference`"


def test_every_public_name_has_one_section() -> None:
    found = re.findall(r"^### `(\w+)`$", reference.API.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted([*found, "__version__"]) == sorted(nearfar.__all__)


def test_every_heading_of_the_api_page_has_names() -> None:
    assert not re.search(r"^## .+\n\n## ", reference.api(), re.MULTILINE)


@pytest.mark.parametrize("variables", [{"COLUMNS": "40"}, {"COLUMNS": "300", "FORCE_COLOR": "1"}, {"NO_COLOR": "1", "TERM": "dumb"}])
def test_the_terminal_changes_nothing(variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert "\x1b" not in reference.cli()
    assert reference.CLI.read_text(encoding="utf-8") == reference.cli()


def test_every_option_of_a_command_is_listed_with_its_short_name() -> None:
    assert "| `--config`, `-c` path |" in reference.cli()
    assert "nearfar-serve-token-add" in anchors_of(reference.CLI)


def test_every_argument_of_a_public_callable_is_described() -> None:
    """In the section of the callable, of its class, or of a public base of that."""
    texts = prose_of_sections()
    missing = [
        f"{where}({name})"
        for where, places, function in public_callables()
        for name in inspect.signature(function).parameters
        if name not in ("self", "cls") and not any(f"`{name}`" in texts[place] for place in places)
    ]
    assert missing == []


def test_every_field_of_a_public_class_is_described() -> None:
    """Fields are the arguments of a class, and the options of a call. Values of an enumeration may speak for themselves."""
    texts = prose_of_sections()
    empty = [
        f"{name}.{field}"
        for name, text in texts.items()
        for field in re.findall(r"^\| `(\w+)` \|.*\|  \|$", text, re.MULTILINE)
        if text.count(f"`{field}`") < 2  # the table, and a sentence
    ]
    assert empty == []


def test_a_callable_that_no_user_can_call_is_not_shown() -> None:
    texts = prose_of_sections()
    assert "RunStore.begin" not in texts  # it takes a task as the store keeps it
    assert "RunStore.show" in texts


def prose_of_sections() -> dict[str, str]:
    """Return the sections of the API page by their names, without their signatures."""
    found = re.findall(r"^#{3,4} `([\w.]+)`\n(.*?)(?=^#{2,4} |\Z)", reference.api(), re.MULTILINE | re.DOTALL)
    return {name: re.sub(r"```.*?```", "", text, flags=re.DOTALL) for name, text in found}


def public_callables() -> Iterator[tuple[str, list[str], Callable[..., Any]]]:
    """Yield what users can call, by its name, with the sections that may describe its arguments."""
    for name in nearfar.__all__:
        value = getattr(nearfar, name)
        if inspect.isfunction(value):
            yield name, [name], value
        elif inspect.isclass(value) and not issubclass(value, Enum):
            for method, function in functions_of(value).items():
                bases = [base.__name__ for base in value.__mro__ if reference.is_public(base)]
                section = name if method == "__init__" else f"{name}.{method}"
                yield section, [section, *bases], function


def functions_of(value: type) -> dict[str, Callable[..., Any]]:
    found: dict[str, Callable[..., Any]] = {}
    for base in reversed(value.__mro__):
        if not base.__module__.startswith("nearfar.") or (base is not value and reference.is_public(base)):
            continue
        for name, member in list(vars(base).items()):
            function = getattr(member, "__func__", member)
            is_named = not name.startswith("_") or name in ("__init__", "__call__")
            if inspect.isfunction(function) and is_named and not is_generated(function) and not is_hidden(value, base, name):
                found[name] = function
    return found


def is_generated(function: Callable[..., Any]) -> bool:
    """Return whether it is the constructor of a dataclass, whose arguments are its fields, or of a protocol."""
    return function.__code__.co_filename == "<string>" or function.__module__ == "typing"


def is_hidden(value: type, base: type, name: str) -> bool:
    return reference.is_internal(base, name) or reference.is_twin(value, name)


def test_shells_complete_the_commands_as_they_are() -> None:
    assert reference.COMPLETIONS.read_text(encoding="utf-8") == reference.completions(), "run `make reference`"
