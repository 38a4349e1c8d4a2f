"""Undo harmless changes of phrases: politeness around a question, and the frame that a question is asked in."""

import re
from typing import Final

from .words import BEST, GOOD, INSTRUCTED, SOME, plain_of, word_set

_NEXT_WORD: Final = (
    r"(?=(?:what|which|who|whom|whose|when|where|why|how|is|are|was|were|do|does|did|can|could|would|will|should"
    r"|has|have|please|tell|explain|i)\b)"
)
_ASKED: Final = r"(?=(?:what|which|who|whom|whose|when|where|why|how|if|whether)\b)"
_GREETING: Final = re.compile(
    r"^(?:(?:hi|hello|hey)(?: there| all| everyone| guys| folks)?|good (?:morning|afternoon|evening)"
    r"|excuse me|quick question|thanks|thank you)"
    rf"(?: [,.!:]| -| ;)* {_NEXT_WORD}"
)
_PLEASE: Final = re.compile(rf"^(?:please|kindly)(?: ,)? {_NEXT_WORD}")
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


_HOW: Final = re.compile(r"^how (?:(?:do|can) i|to) (?=(\w+))")
_HOW_ONE: Final = re.compile(r"^how (?:do|does|can) (?:one|someone|somebody|anyone|anybody|a person) (?=(\w+))")
_HOW_YOU: Final = re.compile(r"^how (?:do|can) (?:you|we) (?=(\w+))")
_WAYS: Final = (
    (BEST, re.compile(r"^(?:what|which) (?:is|are) the best (?:way|method)s? (?P<link>to|of|for) (?=(?P<verb>\w+))")),
    (GOOD, re.compile(r"^what (?:is a|are) good (?:way|method)s? (?P<link>to|of|for) (?=(?P<verb>\w+))")),
    (SOME, re.compile(r"^what (?:is an?|are|are the|are different) (?:way|method)s? (?P<link>to|of|for) (?=(?P<verb>\w+))")),
    (SOME, re.compile(r"^is there (?:a|any) way (?P<link>to) (?=(?P<verb>\w+))")),
)
_GOING_ABOUT: Final = re.compile(r"^how (?:do|can) i go about (?=(\w+))")
_STATES: Final = word_set("be look feel sound smell taste seem appear weigh do compare rank die")
"""Verbs whose `how do I` does not ask for instructions: `how do I look`."""
_VAGUE: Final = word_set("make get become learn write pronounce spell sign")
"""Verbs whose `how do you` asks for instructions only where it names nothing of the person that is asked."""
_PERSONS: Final = word_set("i me my mine myself you your yours yourself we us our they them he she him her")
_FORM: Final = "how-to {}"

_BETWEEN: Final = (
    re.compile(r"^what (?:is|are) (?:the )?differences? between (.+?) and (.+)$"),
    re.compile(r"^how (?:is|are) (.+?) different from (.+)$"),
    re.compile(r"^how (?:does|do) (.+?) differ from (.+)$"),
    re.compile(r"^how (?:are|do) (.+?) and (.+?) (?:differ|different)$"),
)
_SIDE: Final = re.compile(r"(?:(?:a|an|the) )?(?:[^\s,]+ ){0,2}[^\s,]+")
_NOT_A_SIDE: Final = re.compile(r"\b(?:and|or|but|in|on|at|for|of|to|by|with|from|when|if|that|which|who|not|no)\b|[,:;]")
_ARTICLE: Final = re.compile(r"^an? ")

_ASKING_WORDS: Final = "(?:what|which|who|when|where|why|how|is|are|was|were|do|does|did|can|should|will)"
_LINKS: Final = "(?:if|when|because|while|although|unless|and|or|but|so|with|without)"

_FRONTED: Final = re.compile(rf"^((?:in|on|for|with) [^,.?!]{{1,30}}) , (?={_ASKING_WORDS}\b)(.+)$")


_PLAIN: Final = tuple(
    (re.compile(pattern), plain)
    for pattern, plain in (
        (r"^(what|why|how|where|when|who|which) exactly\b", r"\1"),
        (r"^which (?=(?:is|are|was|were)\b|[a-z]+ (?:is|are|was|were|has|have|had|does|do|did|can|should|will)\b)", "what "),
        (r"^what (?:type|sort) of\b", "what kind of"),
        (r"^(what|which|who) (?:is|are) (?:some|one|a few) of the (?=best\b)", r"\1 are the "),
        (r"^what are some of the ", "what are the "),
        (r"^(what|which|who) are some best ", r"\1 are the best "),
        (r"^what are some ", "what are "),
        (
            r"^what (?:does|do) (?!(?:i|you|he|she|they|we|it|this|that|my|your|his|her|their|our)\b)(.+) mean$",
            r"what is the meaning of \1",
        ),
        (r"^what is (?:meant by|(?:the )?definition of)\b(?! life\b)", "what is the meaning of"),
        (r"^(?:how much|what) (?:does|do) (.+) cost$", r"what is the cost of \1"),
        (r"^how much is (?=(?:an?|the) )", "what is the price of "),
        (r"^what is the price of (?=an? [^\s]+$)", "what is the cost of "),
        (r"^(what (?:is|are)) the (?=(?!best|most|least|worst|only|first|last|next)(?:(?!\w+est\b)\w+ ){1,3}(?:of|for|between)\b)", r"\1 "),
        (r"^what is the (?=[A-Z]\w+ [a-z]+$)", "what is "),
        (r"^(?:how does it feel|what does it feel like|what is it like) to\b", "what is it like to"),
        (rf"(?<=\w) , (?={_LINKS}\b)", " "),
        (r"\b([a-z]{4,})-(?=[a-z]{4})", r"\1 "),
        (r"^(?:is|are|was|were|do|does|did|can|should|will) .+ or not$", lambda found: found[0].removesuffix(" or not")),
        (r"\bin order to\b", "to"),
        (r"\bway (?:of|for) (\w+ing)\b", lambda found: f"way to {plain_of(found[1])}" if plain_of(found[1]) else found[0]),
    )
)


def in_plain_frame(text: str) -> str:
    """Return a question in the plain one of the forms that ask the same."""
    text = _FRONTED.sub(r"\2 \1", text)
    for pattern, plain in _PLAIN:
        text = pattern.sub(plain, text)
    return _difference(text) or _instructions(text) or text


def _instructions(text: str) -> str | None:
    about = _GOING_ABOUT.search(text)
    if about is not None:
        return _done(text[about.end() :], about[1])
    asked = _HOW.search(text)
    if asked is not None:
        if asked[1] in _STATES:
            return None
        rest = text[asked.end() :]
        return _FORM.format(_own(rest) if asked[0] == "how to " else rest)
    return _instructions_for_anybody(text) or _ways(text)


def _instructions_for_anybody(text: str) -> str | None:
    """Return the form of `how does one` and `how do you`; None where a person in the rest makes it a question about another person."""
    one, you = _HOW_ONE.search(text), _HOW_YOU.search(text)
    asked = one or you
    if asked is None:
        return None
    rest = text[asked.end() :]
    persons = _PERSONS - {"your"} if you and asked[1] not in _VAGUE else _PERSONS
    if persons.intersection(rest.split()) or asked[1] in _STATES:
        return None
    return _FORM.format(_own(rest)) if one or asked[1] in INSTRUCTED else None


def _ways(text: str) -> str | None:
    for mark, pattern in _WAYS:
        asked = pattern.search(text)
        if asked is not None:
            is_plain = asked["link"] == "to"
            form = _FORM.format(text[asked.end() :]) if is_plain else _done(text[asked.end() :], asked["verb"])
            return None if form is None else f"{mark} {form}"
    return None


def _done(rest: str, participle: str) -> str | None:
    """Return instructions for what a text that begins with a form in `-ing` names; None where it is none of an action."""
    verb = plain_of(participle)
    return None if verb is None else _FORM.format(verb + rest[len(participle) :])


def _own(rest: str) -> str:
    """Return what is done with `my` for the `your` of anybody; as it is where another person is in it."""
    words = rest.split()
    if (_PERSONS - {"your"}).intersection(words):
        return rest
    return " ".join("my" if word == "your" else word for word in words)


def _difference(text: str) -> str | None:
    """Return `difference between` two short things with the two in one order."""
    for pattern in _BETWEEN:
        found = pattern.search(text)
        if found is None:
            continue
        sides = found[1], found[2]
        if any(_NOT_A_SIDE.search(side) or not _SIDE.fullmatch(side) for side in sides):
            return f"difference {sides[0]} and {sides[1]}"
        first, second = sorted(_ARTICLE.sub("", side) for side in sides)
        return f"difference {first} and {second}"
    return None
