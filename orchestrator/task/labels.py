"""Information-flow labels: how far a text may go, whether it is trusted, and what was chosen before untrusted content came in."""

import json
import re
from collections.abc import Iterable, Iterator
from enum import StrEnum
from functools import reduce
from typing import Final
from unicodedata import category

from pydantic import JsonValue

from ...protocols import Sensitivity
from ...protocols.items import TIERS, Namespace, Source, Tier, strictest
from ...protocols.steps import Value

_NETWORK: Final = frozenset(
    {"url", "urls", "uri", "uris", "link", "links", "href", "website", "webpage", "domain", "host", "hostname", "endpoint", "feed"}
)
_NAME: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_UNSPACED: Final = (
    r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3105-\u312f\u3400-\u4dbf\u4e00-\u9fff"
    r"\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
)
"""Letters of scripts that have no spaces between words: Thai, Lao, Burmese, Khmer, Japanese and Chinese."""
_WORD: Final = re.compile(rf"[{_UNSPACED}]|(?:(?![{_UNSPACED}])[^\W\d_])+")
_FEW: Final = 4
"""Words of a name, a title or a state. Fewer hardly make an instruction."""


class Integrity(StrEnum):
    """Trust in the authors of a text."""

    UNTRUSTED = "untrusted"
    """Others may have written it: it is data, whatever it claims to be."""
    TRUSTED = "trusted"
    """The user or the app's own code wrote it."""


class Label(Value):
    """An information-flow label of a text, or of all that a run has seen. `Label()` (shared, trusted) is the identity of `joined`.

    Confidentiality decides on which side a text is worked on, integrity which tools may run because of it (Denning 1976, "A lattice model
    of secure information flow"; Biba 1977).
    """

    tier: Tier = Tier.SHARED
    """Privacy tier: how far the text may go."""
    integrity: Integrity = Integrity.TRUSTED
    """Trusted, or made from untrusted content."""
    origins: tuple[str, ...] = ()
    """Sources that made it more private or less trusted: `tool read_mail`, `memory notes/7`, `the task`."""
    is_disturbed: bool = False
    """Untrusted content may have caused a tool call that changes what other tools return."""

    def joined(self, other: "Label") -> "Label":
        """Return the label of what is made of both this and the `other`: as private as the more private one, and trusted only if both
        are."""
        if self is OPEN:  # most labels are, and a task joins about a hundred
            return other
        if self.covers(other):
            return self
        if other.covers(self) and other.origins[: len(self.origins)] == self.origins:
            return other
        trusted = self.integrity is other.integrity is Integrity.TRUSTED
        return Label(
            tier=strictest((self.tier, other.tier)),
            integrity=Integrity.TRUSTED if trusted else Integrity.UNTRUSTED,
            origins=tuple(dict.fromkeys((*self.origins, *other.origins))),
            is_disturbed=self.is_disturbed or other.is_disturbed,
        )

    def covers(self, other: "Label") -> bool:
        """Return True if joining with `other` changes nothing: it is no more private, no less trusted, and of no further origin."""
        return (
            other is OPEN
            or self is other
            or (TIERS.index(self.tier) <= TIERS.index(other.tier))
            and (self.integrity is Integrity.UNTRUSTED or other.integrity is Integrity.TRUSTED)
            and (self.is_disturbed or not other.is_disturbed)
            and (not other.origins or all(origin in self.origins for origin in other.origins))
        )

    @property
    def told_origins(self) -> tuple[str, ...]:
        """Return the origins as agents, errors and records are told them: names of items of the memory may be private themselves."""
        return tuple(dict.fromkeys("the memory" if origin.startswith("memory ") else origin for origin in self.origins))

    @property
    def sensitivity(self) -> Sensitivity:
        """Return the sensitivity that agents are told: private, unless the text may go everywhere."""
        return Sensitivity.PUBLIC if self.tier is Tier.SHARED else Sensitivity.PRIVATE


OPEN: Final = Label()
"""The label of a text that may go everywhere and that only the user and the app have written."""

OF_CONTEXT: Final = Label(integrity=Integrity.UNTRUSTED, origins=("the context",))
"""The label of a document that a task is about: untrusted content."""


def label_of_stranger(agent: str) -> Label:
    """Return the label of the words of an agent that other people run."""
    return Label(integrity=Integrity.UNTRUSTED, origins=(f"agent {agent}",))


def join_labels(labels: Iterable[Label]) -> Label:
    """Return the label of what is made of all these."""
    return reduce(Label.joined, labels, OPEN)


def may_go(tier: Tier, reach: Tier) -> bool:
    """Return whether data of this tier may go as far as `reach`: `device` is here alone, `shared` is anywhere."""
    return TIERS.index(tier) >= TIERS.index(reach)


class RecalledItem(Value):
    """An item of the memory that was put before a task."""

    namespace: Namespace
    """Namespace of the item."""
    key: str
    """Its key."""
    version: str
    """Its version when it was recalled."""
    tier: Tier
    """Devices that it may travel to."""
    source: Source
    """Source of its words."""
    trust: float
    """Trust in it, 0 to 1."""
    user: str = ""
    """The other user who shared it; empty: it belongs to the task's own user, or to the app."""


class Chosen(Value):
    """The tools and plans that were chosen before a run read untrusted content."""

    tools: tuple[str, ...] = ()
    """Tools that were called, or that a plan names."""
    plan: str = ""
    """The texts of plans."""

    def with_tools(self, names: Iterable[str]) -> "Chosen":
        """Add the `names` of tools that were called."""
        more = sorted({*self.tools, *names})
        return self if len(more) == len(self.tools) else self.model_copy(update={"tools": tuple(more)})

    def with_plan(self, plan: str, tools: Iterable[str]) -> "Chosen":
        """Add a plan, and those of the tools that it names."""
        return self.with_tools(named_tools(plan, tools)).model_copy(update={"plan": f"{self.plan}\n{plan}".strip()})


def named_tools(plan: str, tools: Iterable[str]) -> frozenset[str]:
    """Return the tools that the plan calls, as in `send(to="Ann")`, or names by a name that is no plain word, as in `send_mail`."""
    return frozenset(name for name in tools if re.search(_pattern(name), plan))


def _pattern(name: str) -> str:
    is_word = name.isalpha() and name[1:] == name[1:].lower()  # in capitals at the beginning of a sentence, too
    end = r"\(" if is_word else r"(?![\w-])"
    return rf"(?<![\w-]){re.escape(name)}{end}"


def takes_addresses(parameters: Iterable[str]) -> bool:
    """Return whether one of the parameters is named like a network address: `url`, `page_url`, `hostName`."""
    return any(word.lower() in _NETWORK for name in parameters for word in _NAME.findall(name))


def is_prose(result: str) -> bool:
    """Return whether a result holds a text of more than four words, which is long enough for an instruction.

    Each text of a JSON result is looked at by itself.
    """
    return _is_long(result) and any(map(_is_long, _texts(result)))


def _is_long(text: str) -> bool:
    """Return whether a text has more than a few words. One letter alone, or of a script without spaces, counts as half a word."""
    words = 0.0
    for word in _WORD.finditer(text if text.isascii() else _without_marks(text)):
        words += 0.5 if len(word.group()) == 1 else 1
        if words > _FEW:
            return True
    return False


def _without_marks(text: str) -> str:
    """Return the text without free-standing accents and vowel signs, and without invisible characters: they would split words."""
    return "".join(letter for letter in text if category(letter) not in ("Mn", "Mc", "Me", "Cf"))


def _texts(result: str) -> Iterator[str]:
    try:
        value: JsonValue = json.loads(result)
    except (ValueError, RecursionError):
        yield result
        return
    left = [value]
    while left:
        match left.pop():
            case str(text):
                yield text
            case dict(members):
                left += members.values()
                yield from members
            case list(members):
                left += members
