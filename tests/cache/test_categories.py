"""Questions of which an answer is wrong tomorrow are not kept, and others are."""

import pytest

from nearfar.orchestrator.cache.admission import CURRENT, category_of

MOVING = [
    "What is the weather in Rome?",
    "Is it raining?",
    "Is it cold outside?",
    "How many days until Christmas?",
    "How long is it till Easter?",
    "What is the bitcoin price?",
    "What's the price of gold?",
    "How old am I?",
    "How old is the president of France?",
    "Is it still open?",
    "Pick a random number.",
    "Please choose a card.",
    "Roll a die.",
    "Flip a coin for me.",
    "Wie alt bin ich?",
    "Wie viele Tage sind es bis Weihnachten?",
    "Regnet es?",
]
LASTING = [
    "How do I open a savings account?",
    "What is the price elasticity of demand?",
    "How do I generate a random number in Python?",
    "Why does it rain?",
    "What is gold?",
    "How do I make a coin disappear?",
    "How long does it take to boil an egg?",
    "How many legs has a spider?",
]


@pytest.mark.parametrize("question", MOVING)
def test_what_moves_with_the_time_or_is_drawn_by_chance_is_of_the_moment(question: str) -> None:
    assert category_of(question) == CURRENT


@pytest.mark.parametrize("question", LASTING)
def test_what_holds_tomorrow_is_not_of_the_moment(question: str) -> None:
    assert category_of(question) != CURRENT
