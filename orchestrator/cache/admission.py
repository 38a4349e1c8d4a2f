"""Decide which requests and replies may be cached, by which keys, and in which category."""

import re
from collections.abc import Collection, Mapping
from typing import Final

from pydantic import JsonValue

from ...protocols import AgentCard, FinishReason, Message, Side, StepReply, StepRequest
from ...protocols.steps import Sensitivity
from ..task import TaskScope
from ..util.text import fingerprint
from .guards import Canonical

GENERAL: Final = "general"
CODE: Final = "code"
CREATIVE: Final = "creative"
CURRENT: Final = "current"
OTHER_LANGUAGE: Final = "other_language"

_CURRENT: Final = re.compile(
    r"\b(?:today|tonight|tomorrow|yesterday|now|nowadays|currently|current|latest|newest|recent|recently|live|breaking|upcoming|so far"
    r"|this (?:morning|afternoon|evening|week|weekend|month|year|season)|(?:next|last) (?:week|weekend|month|year|season)|right now"
    r"|weather|forecast|news|score|stock price|exchange rate|traffic|what time|what day|what date"
    r"|heute|morgen|gestern|jetzt|aktuell\w*|neueste\w*|wetter|wie sp\u00e4t|nachrichten"
    r"|aujourd'hui|demain|hier|maintenant|actuel\w*|derni\u00e8re?s?|m\u00e9t\u00e9o|quelle heure"
    r"|hoy|ma\u00f1ana|ayer|ahora|actual\w*|\u00faltim[oa]s?|tiempo hace|qu\u00e9 hora"
    r"|oggi|domani|ieri|adesso|attual\w*|ultim[oaie]|che ore"
    r"|hoje|amanh\u00e3|ontem|agora|atual\w*|que horas)\b"
    r"|\u4eca\u5929|\u660e\u5929|\u73b0\u5728|\u6700\u65b0|\u4eca\u65e5|\u660e\u65e5|\u4eca|\u5929\u6c14|\u5929\u6c17|\u0441\u0435\u0433\u043e\u0434\u043d\u044f|\u0437\u0430\u0432\u0442\u0440\u0430|\u0441\u0435\u0439\u0447\u0430\u0441|\u0622\u062c|\u0627\u0644\u064a\u0648\u0645|\u0627\u0644\u0622\u0646|\u0906\u091c|\u0905\u092d\u0940",
    re.IGNORECASE,
)
"""Words of several languages by which a question asks for what is so at the moment."""
_PRICED: Final = r"(?:stocks?|shares?|bitcoin|btc|ethereum|eth|crypto\w*|gold|silver|oil|gas|petrol|dollar|euro)"
_MOMENT: Final = re.compile(
    rf"\b{_PRICED} prices?\b|\bprices? of (?:an? |the )?{_PRICED}\b|\bis (?:bitcoin|btc|ethereum|gold) worth\b"
    r"|\b(?:is|are) (?:it|they) (?:still |already )?(?:raining|snowing|open|closed|down|up)\b"
    r"|\bis it (?:hot|cold|sunny|dark|windy) (?:out|outside)\b"
    r"|\bhow (?:many|long|much)\b.{0,200}\b(?:until|till|left|remain\w*|since)\b|\bhow old (?:am|is|are)\b"
    r"|\bwie alt (?:bin|ist|sind)\b|\bwie (?:viele|lange)\b.{0,200}\bbis\b"
    r"|\bregnet es\b|\bschneit es\b|\bpleut-il\b|\best\u00e1 lloviendo\b"
    r"|\b(?:roll|throw)\b.{0,200}\bdi(?:e|ce)\b|\b(?:flip|toss)\b.{0,200}\bcoin\b"
    r"|^\W*(?:please )?(?:pick|choose|draw|say|give me|tell me|think of)\b.{0,200}\b(?:random|a (?:number|card))\b",
    re.IGNORECASE | re.DOTALL,
)
"""Questions whose answer moves with the time, or is drawn by chance, without a word that says so."""
_CREATIVE: Final = re.compile(
    r"\b(?:write|compose|invent|imagine|make up|come up with|brainstorm|draft|tell me)\b.{0,40}"
    r"\b(?:poem|story|stories|song|lyrics|joke|haiku|slogan|tagline|names?|ideas?|dialogue|script|limerick|riddle)\b",
    re.IGNORECASE | re.DOTALL,
)
_CODE: Final = re.compile(
    r"```|[{};]\s*$|\b(?:def|class|import|function|SELECT|#include|public static|const|var|let)\b.*[(={;]|</\w+>|=>|::", re.MULTILINE
)


def category_of(question: str, *, task_class: str = "", named: Collection[str] = ()) -> str:
    """Return the category of a question: the finest part of its task class that has settings of its own, else what its words say.

    Args:
        question: the words.
        task_class: as the app gave it, from coarse to fine: `billing/refund`.
        named: categories with settings of their own.
    """
    parts = task_class.split("/") if task_class else []
    classes = ["/".join(parts[:count]) for count in range(len(parts), 0, -1)]
    own = next((name for name in classes if name in named), None)
    if own is not None:
        return own
    if _CURRENT.search(question) or _MOMENT.search(question):
        return CURRENT
    if _CODE.search(question):
        return CODE
    if _CREATIVE.search(question):
        return CREATIVE
    if classes:
        return classes[-1]
    return GENERAL if Canonical.of(question).is_english else OTHER_LANGUAGE


LONGEST_QUESTION: Final = 2_000
"""Characters up to which a question may be found by its meaning; an embedder reads only so much of a text."""


def objection_to_request(request: StepRequest, scope: TaskScope, *, side: Side) -> str | None:
    """Return why the answer to a request is neither looked for nor stored; None where it may be."""
    if scope.caching == "no-store":
        return "the task asks for no-store"
    if request.temperature and request.seed is None:
        return "the answer is sampled: asking again may give another one"
    if request.sensitivity is Sensitivity.PRIVATE and side is Side.FAR:
        return "a far agent refuses private text"
    return None


def objection_to_reply(reply: StepReply, *, minimum_confidence: float) -> str | None:
    """Return why an answer is not stored; None where it may be."""
    finished = reply.finished
    if reply.tool_calls:
        return "it calls tools: what they return, and what they change, is not the cache's to repeat"
    if finished.reason is not FinishReason.STOP:
        return "it was cut off"
    if finished.stop is not None:
        return "a stop sequence ended it, which would have to be told each time"
    if not reply.text.strip():
        return "it is empty"
    if finished.confidence is not None and finished.confidence < minimum_confidence:
        return "the model was not sure of it"
    if finished.saved is not None:
        return "it comes from a cache"
    return None


def question_of(request: StepRequest) -> str | None:
    """Return the words by which a request may be found in another wording; None where it may be found in the same one alone.

    Once tools have returned something, the answer depends on that and not on the question.
    """
    last: Message = request.messages[-1]
    has_results = any(message.tool_result is not None for message in request.messages)
    if last.role != "user" or last.attachments or has_results or not last.text.strip() or len(last.text) > LONGEST_QUESTION:
        return None
    return last.text


_OF_THE_STEP: Final = frozenset({"messages", "idempotency_key", "timeout", "max_reasoning_tokens"})
"""Fields of a request that do not decide its answer, and the messages, which are taken apart."""
VERSION: Final = 1
"""Version of the keys: answers stored under another version are never found."""


def exact_key(request: StepRequest, card: AgentCard, scope: "TaskScope") -> str:
    """Return the hash of everything that decides the answer: agents with one key give one answer, as far as agents can."""
    return fingerprint({**_partition(request, card, scope), "messages": _messages(request.messages)})


def partition_key(request: StepRequest, card: AgentCard, scope: "TaskScope", *, embedder: str) -> str:
    """Return the hash of all but the wording of the last message, the user's. Within one partition, questions may be compared by meaning.

    User, tools, policy, model, sensitivity, output schema, limits, system prompt and all earlier turns are part of it.
    """
    earlier = _messages(request.messages[:-1])
    return fingerprint({**_partition(request, card, scope), "earlier": earlier, "embedder": embedder})


def _partition(request: StepRequest, card: AgentCard, scope: "TaskScope") -> dict[str, JsonValue]:
    return {
        "version": VERSION,
        "request": request.model_dump(mode="json", exclude=set(_OF_THE_STEP)),
        "agent": [card.name, card.side.value, card.model],
        "user": scope.user,
        "policy": scope.policy,
        "task_class": scope.task_class,
    }


def _messages(messages: tuple[Message, ...]) -> JsonValue:
    """Return the messages with calls numbered in their order, since the ids that models give them are random."""
    places: dict[str, str] = {}
    for message in messages:
        for call in message.tool_calls:
            places.setdefault(call.id, str(len(places)))
    return [_message(message, places) for message in messages]


def _message(message: Message, places: Mapping[str, str]) -> JsonValue:
    value: dict[str, JsonValue] = message.model_dump(mode="json", exclude={"tool_calls", "tool_result", "state"})
    result = message.tool_result
    value["calls"] = [[places[call.id], call.name, call.arguments] for call in message.tool_calls]
    if result is not None:
        value["result"] = [places.get(result.call_id, result.call_id), result.name, result.content, result.is_error]
    return value
