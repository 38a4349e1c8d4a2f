"""Of many erasures, those that a write is about are found without a look at the others."""

from hypothesis import given
from hypothesis import strategies as st

from nearfar.orchestrator.memory.operation import Dot, Meta, Operation, Sibling, address_tag
from nearfar.orchestrator.memory.sync.keys import tag_of
from nearfar.orchestrator.memory.sync.messages import Erasure, Erasures, prefix_tag, without_siblings
from nearfar.protocols.items import ItemAddress, Tier

USERS, SUBJECTS, DEVICES = st.sampled_from(["anna", "ben"]), st.sampled_from(["", "mia", "tom"]), st.sampled_from(["laptop", "phone"])
NUMBERS = st.integers(1, 4)
NAMESPACES = st.sampled_from([("a",), ("a", "b"), ("a", "b", "c"), ("d",)])
ADDRESSES = st.builds(ItemAddress, NAMESPACES, st.sampled_from(["x", "y"]))
METAS = st.builds(lambda **given: Meta(**given), user=USERS, subject=SUBJECTS, tier=st.sampled_from(list(Tier)))
SIBLINGS = st.builds(Sibling, st.builds(Dot, DEVICES, NUMBERS), st.just(1), st.just({}), METAS, st.just({}))
OPERATIONS = st.builds(
    lambda *given, **further: Operation(*given, **further),  # of a named tuple, hypothesis would make up what is left out
    st.builds(Dot, DEVICES, NUMBERS),
    st.just(1),
    st.just({}),
    ADDRESSES,
    st.just({}),
    METAS,
    siblings=st.lists(SIBLINGS).map(tuple),
)
VECTORS = st.dictionaries(DEVICES, NUMBERS)


@st.composite
def erasures(draw: st.DrawFn) -> list[Erasure]:
    found = []
    for number in range(draw(st.integers(0, 6))):
        subject = draw(st.none() | SUBJECTS.filter(bool).map(tag_of))
        prefix = draw(NAMESPACES.map(prefix_tag)) if subject is None else None
        overwritten = draw(st.dictionaries(ADDRESSES.map(address_tag), VECTORS, max_size=2))
        found.append(Erasure(str(number), subject, prefix, draw(st.none() | USERS), draw(VECTORS), overwritten))
    return found


@given(erasures(), OPERATIONS)
def test_the_same_is_left_as_when_every_erasure_is_asked(known: list[Erasure], operation: Operation) -> None:
    left = without_siblings(operation, lambda sibling: any(one.covers_sibling(operation.address, sibling) for one in known))
    expected = None if any(one.covers(operation) for one in known) else left
    assert Erasures(known).left_of(operation) == expected


def test_erasures_of_others_are_not_asked() -> None:
    many = [Erasure(str(number), tag_of(f"somebody {number}"), None, "anna") for number in range(1000)]
    operation = Operation(Dot("phone", 1), 1, {}, ItemAddress(("a",), "x"), {}, Meta(user="anna", subject="somebody 7"))
    assert [one.id for one in Erasures(many).near(operation)] == ["7"]
