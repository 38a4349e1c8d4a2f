"""Phrases around a question that ask nothing: greetings, thanks, and `could you tell me`."""

import re
from typing import Final

_NEXT: Final = (
    r"(?=(?:what|which|who|whom|whose|when|where|why|how|is|are|was|were|do|does|did|can|could|would|will|should"
    r"|has|have|please|tell|explain|i)\b)"
)
_ASKED: Final = r"(?=(?:what|which|who|whom|whose|when|where|why|how|if|whether)\b)"
_GREETING: Final = re.compile(
    r"^(?:(?:hi|hello|hey)(?: there| all| everyone| guys| folks)?|good (?:morning|afternoon|evening)"
    r"|excuse me|quick question|thanks|thank you)"
    rf"(?: [,.!:]| -| ;)* {_NEXT}"
)
_PLEASE: Final = re.compile(rf"^(?:please|kindly)(?: ,)? {_NEXT}")
_TELLING: Final = re.compile(
    r"^(?:(?:can|could|would|will) (?:you|anyone|someone|anybody|somebody) (?:please |kindly )?"
    r"(?:tell|explain|show|teach)(?: to)?(?: me| us)?"
    r"|(?:please |kindly )?(?:tell|explain|show|teach)(?: to)? (?:me|us)|explain(?! the\b)"
    r"|(?:do you|does anyone|does anybody|does someone) know(?! (?:how|what|where|when|who|which \w+) to\b)"
    r"|i (?:want|need|would like|am trying) to (?:know|find out)|i was wondering|i am wondering|i wonder|(?:may|can) i ask)"
    rf"(?: please)?(?: [,:])? {_ASKED}"
)
_GIVING: Final = re.compile(
    r"^(?:(?:can|could|would|will) you (?:please )?|please )?(?:(?:tell|give|explain to) me|explain)"
    r" (?=the (?:\w+ ){1,3}(?:of|between|for)\b)"
)
_CLOSING: Final = re.compile(
    r"(?: [,.!?])*(?: please| thanks(?: a lot| so much| in advance)?| thank you(?: so much| very much| in advance)?)$"
)
_THANKED: Final = re.compile(
    r"\b(?:say|says|saying|said|mean|to|write|word|the|a|and|or|with|without|not|i|you|we|they|do|does|did|who|can)$"
)
"""Words after which `please` and `thanks` are what the question is about."""


def without_politeness(text: str) -> tuple[str, bool]:
    """Return a text without what surrounds its question, and whether the question is an indirect one."""
    is_indirect = False
    for _ in range(4):  # "Hello, please, could you tell me ..."
        bare = _PLEASE.sub("", _GREETING.sub("", text))
        told = _GIVING.sub("what is ", _TELLING.sub("", bare))
        is_indirect = is_indirect or told != bare
        closing = _CLOSING.search(told)
        if closing is not None and not _THANKED.search(told[: closing.start()]):
            told = told[: closing.start()]
        if told == text:
            break
        text = told
    return text.rstrip(" ,"), is_indirect


_INDIRECT: Final = (
    (re.compile(r"^(?:if|whether) (.+?) (is|are|was|were|can|should|will|has|have) (.+)$"), r"\2 \1 \3"),
    (
        re.compile(
            r"^(what|who|where|when) (?!(?:is|are|was|were|do|does|did|can|could|should|would|will|has|have)\b)(.+) (is|are|was|were)$"
        ),
        r"\1 \3 \2",
    ),
    (
        re.compile(r"^(why) (?!(?:is|are|was|were|do|does|did|can|could|should|would|will|has|have)\b)((?:\S+ ){1,3}?)(is|are|was|were) "),
        r"\1 \3 \2",
    ),
)
_AUXILIARY: Final = re.compile(r"\b(?:am|is|are|was|were|be|been|do|does|did|can|could|should|would|will|may|might|must|has|have|had)\b")
_WORKS: Final = re.compile(r"^(how|why) (?!to\b|many\b|much\b|long\b|old\b|far\b|often\b)(.+) ([a-z]+)$")


def direct(text: str) -> str:
    """Return an indirect question as it would be asked: `why is the sky blue` for `why the sky is blue`."""
    for pattern, plain in _INDIRECT:
        if pattern.search(text):
            return pattern.sub(plain, text)
    works = _WORKS.search(text)
    if works is None or _AUXILIARY.search(text):
        return text
    subject, verb = works[2], works[3]
    if verb.endswith("s") and not verb.endswith("ss"):
        return f"{works[1]} does {subject} {verb[:-1]}"
    return f"{works[1]} do {subject} {verb}"
