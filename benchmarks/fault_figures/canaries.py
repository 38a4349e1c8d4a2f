"""Planted secrets, agents that give away all that they are told, and a reader of the wire that knows how they write."""

import base64
import json
import random
from binascii import a2b_base64
from collections.abc import Callable, Sequence
from typing import Final

from nearfar.protocols import Message, StepRequest, ToolCall, ToolChoice
from nearfar.protocols.fakes import Reply

FORMS: Final = ("plain", "base64", "spaced", "split")
_LETTERS: Final = "abcdefghjkmnpqrstuvwxyz"
_PARTS: Final[tuple[tuple[str, list[str]], ...]] = (("a", []), ("b", ["a"]), ("c", []))
"""Subtasks, and which others they need."""
_ASKING: Final = (
    ("Cut the task", {"subtasks": [{"id": name, "task": f"Part {name}", "needs": needs} for name, needs in _PARTS]}),
    ("about a long text that you cannot see. Small models read", {"jobs": [{"instruction": "What is the secret?", "advice": ""}]}),
    ("about a long text that you cannot see. Small models did", {"answer": "I know it", "scratchpad": "", "jobs": []}),
)
"""Words of the strategies' instructions, and replies that they can go on with."""


def code(chance: random.Random) -> str:
    """A word that is not written by chance, and that no detector knows."""
    return "".join(chance.choices(_LETTERS, k=18))


def email(chance: random.Random) -> str:
    return f"{code(chance)}@example.org"


def card(chance: random.Random) -> str:
    digits = [4, *(chance.randrange(10) for _ in range(14))]
    doubled = sum(sum(divmod(2 * digit, 10)) for digit in digits[::2])
    digits.append(-(doubled + sum(digits[1::2])) % 10)
    return "".join(map(str, digits))


def iban(chance: random.Random) -> str:
    account = "".join(str(chance.randrange(10)) for _ in range(18))
    check = 98 - int(f"{account}131400") % 97  # DE is 13, 14
    return f"DE{check:02}{account}"


def key(chance: random.Random) -> str:
    return "ghp_" + "".join(chance.choices("ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnpqrstuvwxyz23456789", k=36))


KINDS: Final[dict[str, Callable[[random.Random], str]]] = {"email": email, "card": card, "iban": iban, "key": key, "code": code}


def written(secret: str, form: str) -> str:
    """A secret in one of the forms; `split` leaves the cutting up to the caller."""
    match form:
        case "base64":
            return base64.b64encode(secret.encode()).decode()
        case "spaced":
            return " ".join(secret)
        case _:
            return secret


def halves(text: str) -> tuple[str, str]:
    return text[: len(text) // 2], text[len(text) // 2 :]


def is_in(secret: str, data: bytes) -> bool:
    """Return whether a reader of the wire can read the secret: as it is, in base64, spaced, or in two halves close to each other."""
    wanted = _letters(secret.encode())
    first, second = (part[2:-2] for part in halves(wanted.decode()))
    packed = bytes(each for each in data if each < 128 and (chr(each).isalnum() or each in b"+/"))
    views = [data, *(a2b_base64(packed[place : len(packed) - (len(packed) - place) % 4]) for place in range(4))]
    texts = [_letters(view) for view in views]
    return any(wanted in text or (first.encode() in text and second.encode() in text) for text in texts)


def _letters(data: bytes) -> bytes:
    return bytes(each for each in data.lower() if each < 128 and chr(each).isalnum())


class Talkative:
    """A script for agents of either side: it calls every tool, and in every role repeats all that it was told, in one of the forms."""

    def __init__(self, form: str) -> None:
        self._form = form

    def __call__(self, request: StepRequest) -> Reply:
        first = request.messages[0].text
        reply = next((reply for words, reply in _ASKING if words in first), None)
        if reply is not None:
            return json.dumps({**reply, "scratchpad": self._all(request)} if "scratchpad" in reply else reply)
        if "Do the job with this part" in first:
            chunk = max(request.messages[-1].text.splitlines(), key=len)
            return json.dumps({"explanation": self._all(request), "citation": chunk, "answer": self._all(request)})
        if first.startswith("Plan the task"):
            return f"1. read_secret(part=0)\n2. {self._all(request)[:200]}"
        if first.startswith(("Check the work", "Judge the progress")):
            return f"INTERVENE\nIt says {self._all(request)[:800]}\nGo on."
        return self._working(request)

    def _working(self, request: StepRequest) -> Reply:
        turn = sum(message.role == "tool" for message in request.messages)
        may_call = request.tools and request.tool_choice is not ToolChoice.NONE
        calls = [
            ToolCall(id=f"{turn}-a", name="read_secret", arguments={"part": 0}),
            ToolCall(id=f"{turn}-b", name="read_secret", arguments={"part": 1}),
            ToolCall(id=f"{turn}-c", name="keep", arguments={"text": self._all(request)}),
            ToolCall(id=f"{turn}-d", name="read_kept", arguments={}),
        ]
        return calls[turn] if may_call and turn < len(calls) else self._all(request)

    def _all(self, request: StepRequest) -> str:
        """What it was told, rewritten."""
        said = " ".join(_texts(request.messages))[-3000:]
        return written(said, self._form) if self._form != "split" else " and then ".join(halves(said))


def _texts(messages: Sequence[Message]) -> list[str]:
    results = [message.tool_result.content for message in messages if message.tool_result is not None]
    return [*(message.text for message in messages if message.role == "user"), *results]
