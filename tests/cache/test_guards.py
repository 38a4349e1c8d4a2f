"""The guards tell questions apart whose answers differ, and let pass what only asks in another way."""

import string
import unicodedata

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from benchmarks.cache_figures.questions import written
from nearfar.orchestrator.cache.guards import objection

ALIKE = [
    ("How can I become physically strong?", "How do I become physically strong?"),
    ("What's the best way to learn Japanese?", "How do you learn Japanese?"),
    ("Why are natural resources important?", "Why is a natural resource important?"),
    ("Could you please tell me how magnets work?", "How do magnets work?"),
    ("What is the difference between a film and a movie?", "What's the difference between film and movie?"),
    ("What is the difference between a republic and a democracy?", "What is the difference between a democracy and a republic?"),
    ("How is a republic different from a democracy?", "What is the difference between a republic and a democracy?"),
    ("Are you against the two party system?", "Are you against the 2 party system?"),
    ("What are the best movies?", "What is the best movie?"),
    ("How do you dye your hair?", "How do I dye my hair?"),
    ("Is there any way to make money online?", "How can I make money online?"),
    ("How much does a cello cost?", "What is the cost of a cello?"),
    ("Was kostet ein Haus in Berlin?", "was kostet ein Haus in Berlin"),
    ("\u6771\u4eac\u306e\u4eba\u53e3\u306f\uff1f", "\u6771\u4eac\u306e\u4eba\u53e3\u306f"),
]
DIFFERENT = [
    ("Can I eat raw eggs?", "Can I not eat raw eggs?", "negation"),
    ("Why do cats purr?", "Why don't cats purr?", "negation"),
    ("Is it safe to drive with a license?", "Is it safe to drive without a license?", "negation"),
    ("How do I lose 5 kg?", "How do I lose 10 kg?", "number"),
    ("What is -5 plus x?", "What is 5 plus x?", "number"),
    ("How do I run 10 miles?", "How do I run 10 km?", "word"),
    ("Is 3.5 the best grade?", "Is 35 the best grade?", "number"),
    ("What happened in 1949?", "What happened in 1950?", "number"),
    ("Who is the president of France?", "Who is the president of Ghana?", "name"),
    ("How do I fly from Paris to London?", "How do I fly from London to Paris?", "order"),
    ("Why is Java better than Python?", "Why is Python better than Java?", "order"),
    ("Did John see Mary?", "Did Mary see John?", "order"),
    ("How do I sort a list ascending?", "How do I sort a list descending?", "word"),
    ("What is the best phone?", "What is the worst phone?", "degree"),
    ("Can I take it before meals?", "Can I take it after meals?", "time"),
    ("How do I install Steam?", "How do I uninstall Steam?", "word"),
    ("Why does he call me?", "Why does she call me?", "person"),
    ("Which are the best books on Zen Buddhism?", "What are some good books on Zen Buddhism?", "degree"),
    ("Is the VC model broken?", "Is a VC model broken?", "determiner"),
    ("Which country has the best cuisine?", "Which country has the best cuisine, and why?", "question"),
    ("What is a way to start a fire?", "What is the best way to start a fire?", "degree"),
    ("What did she say to her mother?", "What did she say about her mother?", "preposition"),
    ("How do you pronounce your name?", "How do I pronounce my name?", "question"),
    ("What is the best way to die in the game?", "How do I die in the game?", "question"),
    ("How do you spell your name?", "How do I spell my name?", "question"),
    ("What is John?", "What has John?", "auxiliary"),
    ("What do people wear?", "What did people use to wear?", "tense"),
    ("Must I pay tax on gifts?", "Should I pay tax on gifts?", "modal"),
    ("How do I clean Windows?", "How do I clean windows?", "case"),
    ("how do i clean windows", "How do I clean Windows?", "case"),
    ("How do I clean Windows?", "How do I clean a window?", "name"),
    ("Is Good Friday a holiday?", "Is Friday a holiday?", "name"),
    ("Can I pay cash?", "Can I only pay cash?", "scope"),
    ("Do all snakes bite?", "Do some snakes bite?", "quantity"),
    ("How can someone steal my password?", "How can I steal my password?", "question"),
    ("What is 5!?", "What is 5?", "word"),
    ("What is the meaning of life?", "What is the definition of life?", "word"),
    ("WHO funds research?", "Who funds research?", "case"),
    ("What is vitamin A deficiency?", "What is vitamin deficiency?", "name"),
    ("How do I cook rice?", "Why do I cook rice?", "question"),
    ("Who won the election?", "When was the election won?", "question"),
    ("Who is the champion?", "Who was the champion?", "tense"),
    ("Where is my order?", "Where is your order?", "person"),
    ("Do they chase cats?", "Are they chased by cats?", "auxiliary"),
    ("What is x squared?", "What is x\u00b2?", "word"),
    ("Wie komme ich von Bonn nach Ulm?", "Wie komme ich von Ulm nach Bonn?", "language"),
    ("Welche Masse sind erlaubt, bitte?", "Welche Ma\u00dfe sind erlaubt, bitte?", "language"),
    ("What is 10\u00b2?", "What is 102?", "number"),
    ("Was ist in der Kiste?", "Was ist an der Kiste?", "language"),
    ("Is het goed of slecht?", "Is het goed slecht?", "language"),
    ("Is hepatitis A deadly?", "Is hepatitis deadly?", "language"),
    ("Is tea or coffee healthy?", "Is tea and coffee healthy?", "coordination"),
    ("Is there an easy way to make money?", "Is there a hard way to make money?", "word"),
    ("Should I buy a cat and not a dog?", "Should I buy a dog and not a cat?", "order"),
    ("Should I wait and not run?", "Should I not wait and run?", "order"),
    ("Who knows a reason?", "Who knows a reason why?", "question"),
    ("What is one wheeling?", "What is wheeling?", "person"),
    ("Why does he hate me?", "Why does he hate?", "person"),
    ("Can I buy vitamin A here?", "Can I buy a vitamin here?", "case"),
    ("What should I eat?", "What can I eat?", "modal"),
    ("Darf ich das essen?", "Darf ich das nicht essen?", "language"),
    ("\u0915\u093f\u0924\u093e\u092c", "\u0915\u0924\u093e\u092c", "language"),
    ("What does f(x) = (a + b) * c give?", "What does f(x) = a + (b * c) give?", "language"),
    ("What does \N{FIRE} mean?", "What does \N{SNOWMAN} mean?", "word"),
]
SUBJECTS = ["eggs", "whales", "batteries", "contracts", "tomatoes"]
QUESTIONS = [
    "Is it safe to keep {} at home?",
    "How can I sell {} online?",
    "Why are {} expensive?",
    "What is the best way to store {}?",
    "Do {} need water?",
]
question = st.builds(str.format, st.sampled_from(QUESTIONS), st.sampled_from(SUBJECTS))
place = st.floats(0, 1)
word = st.text(alphabet=st.characters(categories=["L", "N", "M"]), min_size=1)


@pytest.mark.parametrize(("first", "second"), ALIKE)
def test_another_way_of_asking_passes(first: str, second: str) -> None:
    assert objection(first, second) is None


@pytest.mark.parametrize(("first", "second", "kind"), DIFFERENT)
def test_a_change_of_meaning_is_named(first: str, second: str, kind: str) -> None:
    assert (objection(first, second) or "").partition(":")[0] == kind
    assert objection(second, first) is not None


@given(st.text())
def test_a_text_is_never_told_from_itself(text: str) -> None:
    assert objection(text, text) is None


@given(st.text(), st.text())
def test_the_order_of_the_two_makes_no_difference(first: str, second: str) -> None:
    assert (objection(first, second) is None) == (objection(second, first) is None)


def with_word(text: str, word: str, where: float) -> str:
    words = text.split()
    spot = round(where * len(words))
    return " ".join([*words[:spot], word, *words[spot:]])


@given(question, st.integers(0, 10**9), st.integers(0, 10**9), place)
def test_another_number_never_passes(text: str, first: int, second: int, where: float) -> None:
    assume(first != second)
    assert objection(with_word(text, str(first), where), with_word(text, str(second), where)) is not None
    assert objection(with_word(text, str(first), where), text) is not None


@given(question, st.sampled_from(["not", "never", "no", "without", "hardly", "cannot"]), place)
def test_a_negation_that_was_put_in_never_passes(text: str, negation: str, where: float) -> None:
    assert objection(text, with_word(text, negation, where)) is not None


@given(question, st.text(string.ascii_lowercase, min_size=4, max_size=12), place)
def test_a_word_that_the_guards_do_not_know_never_passes(text: str, word: str, where: float) -> None:
    assume(word not in ("please", "kindly", "hello", "thanks", "exactly"))
    assert objection(text, with_word(text, word, where)) is not None


@given(st.permutations(["Ulm", "Bonn", "Kiel"]), st.permutations(["Ulm", "Bonn", "Kiel"]))
def test_names_in_another_order_never_pass(first: list[str], second: list[str]) -> None:
    form = "How do I get from {} to {} by way of {}?"
    assert (objection(form.format(*first), form.format(*second)) is None) == (first == second)


@given(
    st.text(alphabet=st.characters(categories=["L", "N", "M"]), min_size=1),
    st.text(alphabet=st.characters(categories=["L", "N", "M"]), min_size=1),
)
def test_in_an_unknown_language_other_words_never_pass(first: str, second: str) -> None:
    texts = [f"\u0437\u0430\u0447\u0435\u043c {each} \u0442\u0443\u0442" for each in (first, second)]
    assume(len({unicodedata.normalize("NFC", text).lower() for text in texts}) == 2)
    assert objection(*texts) is not None


PAIRS = list(written("development"))
SMALL_WORDS = {
    "preposition": "in on at for of to about from with into over under by off",
    "modal": "can could may might must shall should will would",
    "tense": "was were did had used",
    "scope": "only also even just still already too again almost ever",
    "quantity": "all some any each every both few many much most",
    "degree": "more less best worst very enough",
    "time": "today before after until during ago always once",
    "condition": "if unless whether",
    "coordination": "and or",
    "determiner": "this that these those",
}
small_word = st.sampled_from(" ".join(SMALL_WORDS.values()).split())
WRAPPINGS = ["{}", "please, {}", "hello, {}", "Could you tell me {}", "{}, please", "{} Thanks!", "I would like to know {}"]


@example("What is the best way to store eggs?", "some", 0.3)
@given(question, small_word, place)
def test_a_small_word_that_was_put_in_never_passes(text: str, word: str, where: float) -> None:
    assert objection(text, with_word(text, word, where)) is not None


@given(question, small_word, small_word, place)
def test_a_small_word_in_place_of_another_never_passes(text: str, first: str, second: str, where: float) -> None:
    assume(first != second)
    assert objection(with_word(text, first, where), with_word(text, second, where)) is not None


@given(
    st.sampled_from(["What is the capital of {}?", "How do I get to {}?", "why do people visit {}?"]),
    st.sampled_from(WRAPPINGS),
    st.sampled_from(["Ulm", "East Calder"]),
)
def test_politeness_around_a_question_passes(form: str, wrapping: str, name: str) -> None:
    text = form.format(name)
    assert objection(wrapping.format(text[0].lower() + text[1:]), text) is None


@given(question, st.lists(st.sampled_from("abcdefgh"), min_size=4, max_size=8).map("".join))
def test_a_capital_that_makes_a_name_never_passes(text: str, name: str) -> None:
    asked = f"{text} Ulm or {name}"
    assert objection(asked, asked.replace(name, name.capitalize())) is not None


@pytest.mark.parametrize("kind", sorted({(pair.is_same, pair.kind) for pair in PAIRS}))
def test_written_pairs_of_a_kind_are_judged_as_people_judge_them(kind: tuple[bool, str]) -> None:
    of_kind = [pair for pair in PAIRS if (pair.is_same, pair.kind) == kind]
    wrong = [
        pair for pair in of_kind for passes in (_passes(pair.first, pair.second), _passes(pair.second, pair.first)) if passes != kind[0]
    ]
    assert wrong == []


def _passes(asked: str, stored: str) -> bool:
    return objection(asked, stored) is None
