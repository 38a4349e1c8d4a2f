"""The categories of questions, which decide how long an answer holds and how alike another question has to be."""

import re
from collections.abc import Collection
from typing import Final

from .wording.canonical import Canonical

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
