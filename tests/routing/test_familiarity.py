"""A head is believed as far as the outcomes that arrive bear it out."""

from hypothesis import given
from hypothesis import strategies as some

from nearfar.orchestrator.routing.task_classes import Familiarity

START = 0.6


def taught(
    outcomes: int, *, by_head: float, by_length: float, task_class: str = "law", familiarity: Familiarity | None = None
) -> Familiarity:
    known = familiarity or Familiarity()
    for _ in range(outcomes):
        known.learn(task_class, by_head=by_head, by_length=by_length, outcome=1.0)
    return known


def test_without_outcomes_a_head_has_the_share_that_it_starts_with() -> None:
    assert abs(Familiarity().share("law", START) - START) < 1e-9


def test_a_head_that_is_further_from_the_outcomes_than_length_loses_its_share() -> None:
    assert taught(100, by_head=0.4, by_length=0.6).share("law", START) < 0.05


def test_a_head_that_is_nearer_gains() -> None:
    assert taught(100, by_head=0.7, by_length=0.6).share("law", START) > 0.9


def test_a_class_that_was_never_met_lies_between_what_it_starts_with_and_what_other_classes_showed() -> None:
    known = taught(100, by_head=0.4, by_length=0.6)
    assert known.share("law", START) < known.share("sport", START) < START


def test_one_class_can_be_known_and_another_not() -> None:
    known = taught(200, by_head=0.4, by_length=0.6, task_class="sport", familiarity=taught(200, by_head=0.8, by_length=0.6))
    assert known.share("sport", START) < 0.1 < 0.9 < known.share("law", START)


def test_old_outcomes_fade() -> None:
    known = taught(300, by_head=0.4, by_length=0.6)
    before = known.lead("law")
    taught(3000, by_head=0.7, by_length=0.6, familiarity=known)
    assert before < 0 < known.lead("law")


@given(
    some.lists(some.tuples(some.sampled_from(["", "law", "law/civil"]), *(some.floats(0, 1) for _ in range(3))), max_size=40),
    some.floats(0, 1),
)
def test_a_share_lies_between_0_and_1(outcomes: list[tuple[str, float, float, float]], start: float) -> None:
    known = Familiarity()
    for name, by_head, by_length, outcome in outcomes:
        known.learn(name, by_head=by_head, by_length=by_length, outcome=outcome)
    assert all(0 <= known.share(name, start) <= 1 for name in ("", "law", "law/civil", "sport"))
