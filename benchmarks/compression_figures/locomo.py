"""Very long conversations between two people (LoCoMo): is what later questions need still there?"""

import gzip
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from nearfar.orchestrator.compression.conversation import conversation_tokens
from nearfar.protocols import Message

from .methods import METHODS, SHARES, mean, shown

FILE = Path("memory") / "locomo_first5.json.gz"
ADVERSARIAL = 5
"""Category of the questions that have no answer."""
_SENTENCE = re.compile(r"[^.!?]+[.!?]*")


def figures(data: Path, *, quick: bool) -> dict[str, object]:
    """By budget and method: `evidence`, the share of the sentences of evidence turns that are still there word for word; `answers`, of
    the questions whose answer stands in their evidence word for word, the share where it still stands in the conversation.

    `question_aware`: the question is the user's last message. `question_blind`: the conversation is cut before anybody asks.
    """
    conversations = json.loads(gzip.decompress((data / FILE).read_bytes()))
    results: dict[str, dict[str, list[float]]] = {}
    for conversation in conversations[: 2 if quick else None]:
        _measure(conversation, results, step=16 if quick else 3)
    return {name: {figure: mean(values) for figure, values in found.items()} for name, found in results.items()}


def _measure(conversation: dict[str, Any], results: dict[str, dict[str, list[float]]], *, step: int) -> None:
    turns, messages = _turns(conversation["conversation"])
    questions = [each for each in conversation["qa"] if each["category"] != ADVERSARIAL and any(e in turns for e in each["evidence"])]
    for share in SHARES:
        budget = conversation_tokens(messages) // share
        blind = {name: shown(method(messages, budget=budget).messages) for name, method in METHODS.items()}
        for question in questions[::step]:
            evidence = [turns[each] for each in question["evidence"] if each in turns]
            for name, text in blind.items():
                _add(results, f"1/{share} question_blind {name}", text, evidence, str(question["answer"]))
            asked = [*messages, Message.user(question["question"])]
            text = shown(METHODS["compress"](asked, budget=budget).messages[:-1])
            _add(results, f"1/{share} question_aware compress", text, evidence, str(question["answer"]))


def _turns(conversation: dict[str, Any]) -> tuple[dict[str, str], list[Message]]:
    """The turns by their names, and as messages."""
    turns: dict[str, str] = {}
    messages: list[Message] = []
    for session in _sessions(conversation):
        for turn in session:
            turns[turn["dia_id"]] = turn["text"]
            said = Message.user if turn["speaker"] == conversation["speaker_a"] else Message.assistant
            messages.append(said(f"{turn['speaker']}: {turn['text']}"))
    return turns, messages


def _sessions(conversation: dict[str, Any]) -> Iterator[list[dict[str, str]]]:
    number = 1
    while f"session_{number}" in conversation:
        yield conversation[f"session_{number}"]
        number += 1


def _add(results: dict[str, dict[str, list[float]]], name: str, text: str, evidence: Sequence[str], answer: str) -> None:
    found = results.setdefault(name, {"evidence": [], "answers": []})
    sentences = [sentence.strip() for turn in evidence for sentence in _SENTENCE.findall(turn) if sentence.strip()]
    if sentences:
        found["evidence"].append(sum(sentence in text for sentence in sentences) / len(sentences))
    if answer.casefold() in "\n".join(evidence).casefold():
        found["answers"].append(float(answer.casefold() in text.casefold()))
