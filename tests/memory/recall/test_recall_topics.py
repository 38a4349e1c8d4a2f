"""Where topics end."""

import numpy

from nearfar.orchestrator.memory.episodic import Topic
from nearfar.orchestrator.memory.ranking import Span
from nearfar.protocols.items import Tier

ABOUT = (Tier.DEVICE, "")
EAST = numpy.array([1.0, 0.0], dtype=numpy.float32)
NORTH = numpy.array([0.0, 1.0], dtype=numpy.float32)


def topic_of(lines: int) -> Topic:
    topic = Topic(Span("a", 5, 5), ABOUT)
    for number in range(lines):
        topic.add(f"line {number}", EAST)
    return topic


def test_a_topic_spans_its_turns() -> None:
    assert topic_of(3).span == Span("a", 5, 7)


def test_a_turn_about_something_else_begins_another_topic() -> None:
    assert topic_of(3).continues("more of it", EAST, ABOUT)
    assert not topic_of(3).continues("by the way", NORTH, ABOUT)


def test_a_single_turn_is_no_topic() -> None:
    assert topic_of(1).continues("something else", NORTH, ABOUT)


def test_a_turn_that_may_go_further_begins_another_topic() -> None:
    assert not topic_of(1).continues("more of it", EAST, (Tier.SHARED, ""))


def test_a_turn_about_somebody_else_begins_another_topic() -> None:
    assert not topic_of(1).continues("more of it", EAST, (Tier.DEVICE, "bob"))


def test_a_topic_does_not_grow_without_end() -> None:
    assert not topic_of(8).continues("more of it", EAST, ABOUT)
    assert not topic_of(2).continues("word " * 1000, EAST, ABOUT)


def test_without_meanings_only_size_ends_a_topic() -> None:
    topic = Topic(Span("a", 0, 0), ABOUT)
    for number in range(7):
        assert topic.continues(f"line {number}", None, ABOUT)
        topic.add(f"line {number}", None)
