"""LoCoMo: conversations of two people over many sessions, and questions with the turns that answer them."""

import gzip
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, Final, Self

from nearfar.orchestrator.memory.episodic import MemoryTurn

CATEGORIES: Final = {1: "multi_hop", 2: "temporal", 3: "open_domain", 4: "single_hop"}
"""Those whose questions have an answer; the questions of category 5 have none."""

_SESSION: Final = re.compile(r"session_(\d+)")
_EVIDENCE: Final = re.compile(r"D(\d+):(\d+)")


@dataclass(frozen=True, slots=True)
class Question:
    """A question, and the turns with its answer."""

    text: str
    category: str
    evidence: frozenset[str]
    """Names of turns."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """What two people said to each other, by session."""

    name: str
    sessions: Mapping[str, Mapping[str, MemoryTurn]]
    """Turns in order by the names that evidence uses, by session."""
    questions: tuple[Question, ...]

    def beginning(self, sessions: int) -> Self:
        """Its first sessions, and the questions that they answer."""
        kept = dict(islice(self.sessions.items(), sessions))
        said = {name for turns in kept.values() for name in turns}
        return replace(self, sessions=kept, questions=tuple(one for one in self.questions if one.evidence <= said))


def conversations(folder: Path) -> list[Conversation]:
    """All that the folder has."""
    files = sorted([*folder.glob("locomo*.json.gz"), *(folder / "memory").glob("locomo*.json.gz")])
    return [_conversation(one) for file in files for one in json.loads(gzip.decompress(file.read_bytes()))]


def _conversation(record: Mapping[str, Any]) -> Conversation:
    said = record["conversation"]
    numbers = sorted(int(match[1]) for name in said if (match := _SESSION.fullmatch(name)))
    sessions = {str(number): _turns(said[f"session_{number}"], said[f"session_{number}_date_time"]) for number in numbers}
    names = {name for turns in sessions.values() for name in turns}
    return Conversation(record["sample_id"], sessions, tuple(_questions(record["qa"], names)))


def _turns(said: list[dict[str, Any]], at: str) -> dict[str, MemoryTurn]:
    moment = datetime.strptime(at, "%I:%M %p on %d %B, %Y").replace(tzinfo=UTC)
    return {_name(turn["dia_id"]): MemoryTurn(speaker=turn["speaker"], text=_text(turn), at=moment) for turn in said}


def _text(turn: Mapping[str, Any]) -> str:
    """With what the picture shows, where one was sent; the words by which it was searched for are not used."""
    caption = turn.get("blip_caption")
    return f"{turn['text']} [shows {caption}]" if caption else str(turn["text"])


def _questions(records: list[dict[str, Any]], names: set[str]) -> Iterator[Question]:
    """Questions whose evidence is known; some name turns that are not there, or none."""
    for record in records:
        evidence = frozenset(_name(name[0]) for listed in record["evidence"] for name in _EVIDENCE.finditer(listed))
        if record["category"] in CATEGORIES and (known := evidence & names):
            yield Question(record["question"], CATEGORIES[record["category"]], known)


def _name(given: str) -> str:
    """Without leading zeros."""
    session, turn = given.removeprefix("D").split(":")
    return f"D{int(session)}:{int(turn)}"
