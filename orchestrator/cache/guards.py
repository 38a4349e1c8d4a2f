"""Guards: reasons why the answer to one question must not be given to another, however close the two are in meaning.

An embedding barely notices a `not`, a number, or two names that changed places, so closeness alone serves wrong answers. The guards compare
the canonical forms of two questions instead, and fail closed. Every step towards the form undoes a change that is known to be harmless:
politeness, contractions, spelling, ways of asking. Any other change stays in it, and is an objection.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Final

from .words import (
    AMBIGUOUS,
    BEST,
    GOOD,
    INSTRUCTED,
    NAMES,
    SOME,
    agree,
    in_one_spelling,
    of_a_kind,
    plain_of,
    without_contractions,
    without_marks,
    word_set,
)

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

_BEGINNINGS: Final = "(?:what|which|who|when|where|why|how|is|are|was|were|do|does|did|can|should|will)"
_LINKS: Final = "(?:if|when|because|while|although|unless|and|or|but|so|with|without)"

_FRONTED: Final = re.compile(rf"^((?:in|on|for|with) [^,.?!]{{1,30}}) , (?={_BEGINNINGS}\b)(.+)$")


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


_WORDS: Final[dict[str, frozenset[str]]] = {
    kind: frozenset(words.split())
    for kind, words in {
        "question": "what which who whom whose when where why how how-to whether",
        "negation": "not no never none nothing nobody nowhere neither nor without cannot hardly barely scarcely rarely seldom"
        " except unless but",
        "person": "i me my mine myself you your yours yourself he him his himself she her hers herself it its itself we us our ours"
        " ourselves they them their theirs themselves one people",
        "tense": "was were did had been will use used going",
        "modal": "can could may might must shall should will would ought need able allowed supposed required",
        "auxiliary": "am is are was were be been being do does did done has have had having get got",
        "scope": "only also even just still already yet too again almost ever really quite rather so exactly mainly merely instead",
        "degree": "<best> <good> <some> more most less least better best worse worst very good great enough as than bigger biggest",
        "quantity": "all some any each every both either many much few little several half another other most",
        "determiner": "a an the this that these those",
        "time": "today tomorrow yesterday now then before after since until by during while ago later when daily weekly monthly yearly"
        " always sometimes often once twice first last next",
        "condition": "if even unless whether",
        "coordination": "and or & vs versus",
        "preposition": "in on at for of to about from with into onto over under by off up down out through against between near behind"
        " above below across along around inside outside like",
    }.items()
}
_NUMBER: Final = re.compile(r"\d|%|[$\u20ac\u00a3\u00a5]|-$")


def objection(asked: str, stored: str) -> str | None:
    """Return why the answer to the stored question does not answer the asked one; None where no guard objects. Symmetric."""
    mine, theirs = Canonical.of(asked), Canonical.of(stored)
    if mine.asks_the_same_as(theirs):
        return None
    if not (mine.is_english and theirs.is_english):
        return "language: the words differ, and the guards know only plain English"
    return kind_of(mine.text, theirs.text)


def kind_of(asked: str, stored: str) -> str:
    """Return the kind of change between two different canonical forms, and the words in which they differ."""
    mine, theirs = Counter(asked.split()), Counter(stored.split())
    only_mine, only_theirs = mine - theirs, theirs - mine
    differing = {*only_mine, *only_theirs}
    if not differing:
        return "order: the same words stand in another order"
    return f"{_kind(differing)}: {_listed(only_mine)} against {_listed(only_theirs)}"


def _kind(words: set[str]) -> str:
    if len({word.lower() for word in words}) < len(words):
        return "case"
    if "~" in words:
        words = words - {"~"} or {"a"}
    for kind in ("question", "negation", "tense"):
        if _WORDS[kind] & words:
            return kind
    if any(_NUMBER.search(word) for word in words):
        return "number"
    if any(word[0].isupper() for word in words):
        return "name"
    named = (kind for kind, known in _WORDS.items() if words <= known)
    partly = (kind for kind, known in _WORDS.items() if words & known and len(words) > 1)
    return next(named, None) or next(partly, None) or "word"


def _listed(words: Counter[str]) -> str:
    return " ".join(sorted(words)) or "nothing"


_TOKEN: Final = re.compile(
    r"(?:[^\W\d_]\.){2,}"  # U.S., a.m.
    r"|\d+(?:[.,:/-]\d+)*[^\W\d_]*"  # 3.10, 10:30, 03/04, 16GB, 5th
    r"|[^\W_]+(?:[.'&/_-][^\W_]+)*(?:\+\+|\#(?!\w))?"  # don't, part-time, a.txt, C++
    r"|\S"
)
_QUOTED: Final = re.compile(r"[\"`\u00ab\u00bb\u201e\u201c\u201d\u300c\u300e]|(?<!\w)'[^'\n]+'(?!\w)")
_FORMAL: Final = re.compile(r"[=*<>{}\[\]\\^|~@_#]|\w\(|://|(?<![\w.])[./]\w|\)\s*[-+/]|[-+/]\s*\(|\d\s*[-+/]\s+\d|\n")
"""Code, formulas, paths and addresses, where every character counts."""
_SHARP: Final = re.compile(r"\b[CFcf]#(?!\w)")
_ENDS: Final = frozenset("?!.\u2026")
_FACTORIAL: Final = re.compile(r"\d !$")
_FIRST: Final = re.compile(r"[A-Z][a-z]*(?:'[a-z]+)?")
_LAZY: Final = word_set(
    "i i'm i've i'll i'd an the in on at for of to by with from and or what which who whom whose when where why how is are was were"
    " do does did can could should would will has have had please hi hello hey"
)
"""Words that are no names, whatever their case."""
_SMALL_I: Final = re.compile(r"\bi\b")
_FEWEST_SHOUTED: Final = 3


def normalize(text: str) -> str:
    """Return a text in one form of its accents, apostrophes and spaces."""
    return " ".join(unicodedata.normalize("NFC", text).replace("\u2019", "'").split())


def is_literal(text: str) -> bool:
    """Return whether a text holds a quotation, code, a formula, a path or an address: no word of it may be read for another."""
    return _QUOTED.search(text) is not None or _FORMAL.search(_SHARP.sub("", text)) is not None


def is_caseless(text: str) -> bool:
    """Return whether a text is written without capitals, not even a first one or `I`, or in nothing but capitals."""
    return text.islower() or text.isupper() or (text[1:].islower() and _SMALL_I.search(text) is not None)


def tokens(text: str) -> list[str]:
    """Return the words and signs of a text but those at its end, with the case of what may be a name.

    Case is dropped where a sentence begins, in words that are no names (`What`), in names that are no words (`japanese`), and in a text
    that is written in capitals throughout.
    """
    found = _TOKEN.findall(text)
    while found and found[-1] in _ENDS and not _FACTORIAL.search(" ".join(found[-2:])):
        found.pop()
    if text.isupper() and len(found) >= _FEWEST_SHOUTED:
        return [word.lower() for word in found]
    return [_cased(word, begins=place == 0 or found[place - 1] in _ENDS) for place, word in enumerate(found)]


def _cased(word: str, *, begins: bool) -> str:
    lower = word.lower()
    if word == "I" or lower in NAMES:
        return lower
    return lower if _FIRST.fullmatch(word) and (begins or lower in _LAZY) else word


_ENGLISH: Final = word_set(
    "the what how why who where when which does did can could should would are have has must may whose whom you"
    " your my with from this that and it if not"
)
"""Frequent words, and hardly any of them a frequent one of another language too."""
_SIGNS: Final = word_set("a the to for by or than be")
"""They tell an English text that begins with `is` from a Dutch one."""
_OPENINGS: Final = frozenset(
    f"{first} {second}"
    for first, others in (
        ("is", "a it the there this he she my your"),
        ("do", "i people they we you all some most many any not these those"),
        ("i", "am need want"),
        ("can", "i you we they it my the a"),
        ("was", "it he she"),
        ("will", "i it he she they we you"),
    )
    for second in others.split()
)
"""Beginnings by which it is known although their first word is one of other languages too."""
_ASKING_WORDS: Final = word_set("what how why which where when does should would could tell")
_NEAR: Final = 5
"""Words at the beginning among which one of these is a sign of English."""
_SHARE: Final = 0.2
"""Share of a text's words that must be among these for it to count as English; ordinary questions reach twice as many."""


def is_english(words: Sequence[str]) -> bool:
    """Return whether words in lower case are those of an English text."""
    if not words:
        return False
    if words[0] == "is" and _SIGNS.intersection(words[1:]):
        return True
    if words[0] in _ENGLISH or _ASKING_WORDS.intersection(words[:_NEAR]) or _OPENINGS.intersection(map(" ".join, pairwise(words[:_NEAR]))):
        return True
    return sum(word in _ENGLISH for word in words) >= _SHARE * len(words)


_TRAILING: Final = re.compile(r"[\s?!.\u2026\uff1f\u3002\uff01\u061f]+$")
_NAME: Final = re.compile(r"[^\W\d_]+(?:['-][^\W\d_]+)*")
"""A word that may be a name; of what holds digits or points, as a file does, the case counts in any text."""
_BEGINS: Final = re.compile(r"^[\s\u00bf\u00a1]+")


@dataclass(frozen=True, slots=True)
class Canonical:
    """The form of a text in which only differences are left that may matter."""

    words: tuple[str, ...]
    """The words and signs of the form; of another language than English, and of a text with code or quotations, the text as a whole."""
    marks: Mapping[int, str]
    """Words that the other text may leave out, by place in `words`."""
    is_english: bool
    is_caseless: bool = False
    """The text has no capitals that could tell a name: its writer does not use them."""

    @classmethod
    def of(cls, text: str) -> "Canonical":
        """Return the form of a text."""
        return _canonical(text)

    def asks_the_same_as(self, other: "Canonical") -> bool:
        """Return whether only harmless changes lie between two texts."""
        if self.is_english != other.is_english or not agree(self.marks, other.marks):
            return False
        return self.words == other.words or ((self.is_caseless or other.is_caseless) and self._without_case() == other._without_case())

    @property
    def text(self) -> str:
        """The form in one line, marks in their places."""
        return " ".join(f"{self.marks[place]} {word}" if place in self.marks else word for place, word in enumerate(self.words))

    def _without_case(self) -> list[str]:
        return [word if word.lower() in AMBIGUOUS or not _NAME.fullmatch(word) else word.lower() for word in self.words]


@lru_cache(maxsize=256)
def _canonical(text: str) -> Canonical:
    stripped = unicodedata.normalize("NFC", text).strip()
    if is_literal(stripped):
        return Canonical((stripped,), {}, is_english=False)
    plain = normalize(text)
    written = without_contractions(" ".join(tokens(plain)))
    asked, is_indirect = without_politeness(written)
    if not (is_english(written.lower().split()) or is_english(asked.lower().split())):
        return Canonical((_of_any_language(plain),), {}, is_english=False)
    if is_indirect:
        asked = direct(asked)
    form = of_a_kind(in_plain_frame(in_one_spelling(asked)))
    words, marks = without_marks(form.split())
    return Canonical(words, marks, is_english=True, is_caseless=is_caseless(plain))


def _of_any_language(text: str) -> str:
    bare = _BEGINS.sub("", _TRAILING.sub("", text)) or text
    return bare[:1].lower() + bare[1:]
