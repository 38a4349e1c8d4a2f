"""English words that change what a question asks, and those that do not: what the guards go by.

A word that stands in no list here counts as meaningful, so a list that lacks one costs a hit and serves no wrong answer.
"""

from typing import Final


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


NEGATIONS: Final = frozenset(
    [
        "not",
        "no",
        "never",
        "none",
        "nothing",
        "nobody",
        "nowhere",
        "neither",
        "nor",
        "without",
        "cannot",
        "hardly",
        "barely",
        "scarcely",
        "rarely",
        "seldom",
        "except",
        "unless",
    ]
)
"""They turn a question round. Both texts have to hold the same ones in the same places."""
QUESTIONS: Final = _words("what how why when where who whom whose")
"""What is asked for. Both texts have to ask for the same."""
MODALS: Final = _words("can could may might must shall should will would ought")
ALIKE_MODALS: Final = {"could": "can", "may": "can", "might": "can", "ought": "should", "must": "should", "shall": "should"}
"""For each modal that opens a question, the one that it is taken for."""
AUXILIARIES: Final = _words("am is are was were be been being do does did have has had")
"""They carry person and tense alone, unless they end the text."""
PAST: Final = _words("was were did had been")
FUTURE: Final = _words("will")

ARTICLES: Final = _words("a an the some any")
NEUTRAL_PREPOSITIONS: Final = _words("in on at for of to about")
"""Which of them a noun or verb takes is a matter of idiom. Every other preposition says a direction, a time or a condition."""
TONE: Final = frozenset(
    ["please", "kindly", "hi", "hello", "hey", "thanks", "thank", "guys", "exactly", "actually", "really", "just", "also", "there"]
)
ASKERS: Final = _words("i you we one someone somebody anyone anybody people")
"""Subjects that stand for whoever asks, behind `can`, `do` and the like: `how can I`, `how does one`."""
OWNERS: Final = _words("my your our")
"""May be left out, and are not taken for each other."""
OPTIONAL: Final = _words(
    "best ever that very even and or it so be this several various main major common useful available exist made used own overall"
    " yourself myself i you we possibly specifically simply"
)
"""May be left out of one of the two, and say little: an answer names the best in any case; `worst` may not, nor may `and` become `or`."""
CONJUNCTIONS: Final = _words("and or vs")
"""What they join may stand in either order."""
_TO_TEN: Final = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
NUMERALS: Final = {word: str(number) for number, word in enumerate(_TO_TEN, start=1)}
"""For a number in words, its digits."""

ENGLISH: Final = _words(
    "the what how why who where when which does did can could should would are have has you your my with from this that and it if not"
)
"""Words by which English is known: frequent ones, and hardly any of them a frequent one of another language too."""
SIGNS: Final = _words("a the to for by or than be")
"""They tell an English text that begins with `is` from a Dutch one."""
OPENINGS: Final = frozenset(
    f"{first} {second}" for first, others in (("is", "a it the there this"), ("do", "i people they we you")) for second in others.split()
)
"""Beginnings by which it is known although their first word is one of other languages too."""

PHRASES: Final = (
    (r"\bcan(?:'t|not)\b", "can not"),
    (r"\bwon't\b", "will not"),
    (r"\bshan't\b", "shall not"),
    (r"\b(do|does|did|is|are|was|were|has|have|had|would|could|should)nt\b", r"\1 not"),
    (r"n't\b", " not"),
    (r"'re\b", " are"),
    (r"'m\b", " am"),
    (r"'ve\b", " have"),
    (r"'ll\b", " will"),
    (r"'d\b", " would"),
    (r"\b(what|how|who|where|when|why|it|that|there|he|she)'s\b", r"\1 is"),
    (r"\bwhats\b", "what is"),
    (r"'s?\b", " "),
    (
        r"\bwhat (?:is|are|would be|could be) (?:the |a |an |some (?:of the )?)?(?:best |good |most effective |effective |possible )*"
        r"(?:way|method)s? (?:to|of|for|in which)\b",
        "how",
    ),
    (r"^in what ways?\b", "how"),
    (r"\bwhat (?:should|can|could|must) (?:i|we|you|one) do (?:to|in order to)\b", "how"),
    (r"\b(?:could|can|would) (?:you|anyone|someone|anybody|somebody) (?:please )?(?:tell|explain)(?: to)? (?:me|us)\b", ""),
    (r"^(?:please )?(?:tell|explain)(?: to)? (?:me|us)\b", ""),
    (r"^does (?:anyone|anybody|someone|somebody) know\b", ""),
    (r"^i (?:want|need|would like) to know\b", ""),
    (r"^do you think(?: that)?\b|\bdo you think (?=(?:will|would|is|are|was|were|can|could|should)\b)", ""),
    (r"^is it possible (?:for (?:me|you|us|one|someone) )?to\b", "can i"),
    (r"^(?:is|are) there (?:an?|any|some)(?: good| easy)? ways? (?:for (?:me|you|us|one|someone) )?(?:to|of)\b", "how"),
    (r"^how (?:is|are|does|do) (.+?) (?:differ|different) from (.+)$", r"what is difference between \1 and \2"),
    (r"^how (?:is|are|do|does) (\w+) (?:and|or) (\w+) (?:differ|different)\b", r"what is difference between \1 and \2"),
    (r"\bwill it take\b", "does it take"),
    (r"^how will (?=i\b|you\b|we\b|one\b)", "how can "),
    (r"\ba lot\b(?! of)", "much"),
    (r"^how much (?:does|do|is|would) (.+?) cost\b", r"what is cost of \1"),
    (r"^what (?:does|do|did) ([^?]+) mean(?=\W*$)", r"what is meaning of \1"),
    (r"^(how (?:do|can|could|should)) (?:you|one)\b(.*?)\byour\b", r"\1 i\2my"),
    (r"^what is (?:the )?definition of\b", "what is meaning of"),
    (r"\bunited states(?: of america)?\b|\bu\.s\.(?:a\b\.?)?|(?<=\bthe )us\b", "usa"),
    (r"\bunited kingdom\b|\bu\.k\.", "uk"),
    (r"\bweight loss\b|\blosing weight\b", "lose weight"),
    (r"(?<=\w)(est|best|most)\b(.*?) (?:in the (?:whole |entire )?world|on earth|of all times?|in history)(?=\W*$)", r"\1\2"),
    (r"\bmake money\b", "earn money"),
    (r"\breduce weight\b", "lose weight"),
    (r"\b(?:mobile|cell|smart) (phones?)\b", r"\1"),
    (r"\b(?:a lot|lots) of\b", "many"),
    (r"\be-(?=mail|book)", "e"),
    (r"\bwi-fi\b", "wifi"),
    (r"\bwhat do you mean by\b", "what is meaning of"),
    (r"\bwhat is meant by\b", "what is meaning of"),
    (r"\bwhat is it like to\b", "how feel"),
    (r"\bwhat does it feel like to\b", "how feel"),
    (r"\bwhat (?:is|are) (?:the )?(?:main )?reasons? (?:for|behind|of|that|why)\b", "why"),
    (r"(?:[,.?!;]\s*(?:and |if so,? )?| and )why(?: or why not)?[\s?]*$", ""),
    (r"\b(?:one|some|few) of\b", "of"),
    (r"\bin order to\b", "to"),
    (r"\bhow come\b", "why"),
    (r"\b(?:is|are|am) going to\b", "will"),
    (r"\bwhich(?: one)?\b", "what"),
)
"""Contractions and forms of asking as patterns of a text in lower case, each with the plain form that it stands for; in this order."""

_ALIKE: Final = (
    "ad advert advertisement",
    "advantage benefit",
    "america usa",
    "important importance",
    "and &",
    "best good top great greatest nice nicest amazing awesome excellent interesting",
    "buy purchase",
    "big large",
    "begin start commence",
    "boost increase",
    "biggest largest",
    "boyfriend bf",
    "car automobile",
    "app application",
    "behavior behaviour",
    "center centre",
    "child children kid",
    "choose select pick",
    "color colour",
    "computer pc",
    "difference differ",
    "doctor physician",
    "easiest simplest",
    "easy simple",
    "exam examination",
    "favorite favourite",
    "fast quickly rapidly quick",
    "film movie",
    "fix repair",
    "lady woman",
    "switch change",
    "person people",
    "girlfriend gf",
    "government govt",
    "happen occur",
    "hard difficult",
    "if whether",
    "kind type sort",
    "lawyer attorney",
    "information info",
    "math maths mathematics",
    "maximum max",
    "mean meaning",
    "method way technique",
    "minimum min",
    "phone smartphone cellphone",
    "photo photograph picture image",
    "price cost",
    "quit stop",
    "remove delete",
    "scared afraid",
    "tip advice",
    "tv television",
    "vs versus",
    "website site",
)
SYNONYMS: Final = {word: words.split()[0] for words in _ALIKE for word in words.split()}
"""For a word, in its singular, the one that it is taken for."""
