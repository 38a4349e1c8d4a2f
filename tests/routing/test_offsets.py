"""Beliefs about nested offsets are those of the joint Gaussian over all of them."""

import pytest

numpy = pytest.importorskip("numpy", reason="the joint Gaussian is computed with numpy")

from hypothesis import given, settings
from hypothesis import strategies as st

from nearfar.orchestrator.routing.success import NestedOffsets, OffsetEvidence

CLASSES = ("", "a", "a/x", "a/y", "a/y/z", "b", "b/x")
DIFFERENCES = {"": ("",), "a": ("", "a"), "a/x": ("", "a", "a/x"), "a/y": ("", "a", "a/y"), "b": ("", "b"), "b/x": ("", "b", "b/x")}
DIFFERENCES |= {"a/y/z": ("", "a", "a/y", "a/y/z")}
"""Of which differences each offset is the sum."""
EVIDENCE = st.dictionaries(
    st.sampled_from(CLASSES),
    st.builds(OffsetEvidence, precision=st.floats(0.01, 100), shift=st.floats(-50, 50)),
)


def joint(deviation: float, evidence: dict[str, OffsetEvidence], task_class: str) -> tuple[float, float]:
    """Mean and variance by inverting the precision matrix of all differences."""
    sums = numpy.array([[float(name in DIFFERENCES[row]) for name in CLASSES] for row in CLASSES])
    known = [evidence.get(name, OffsetEvidence()) for name in CLASSES]
    precision = numpy.eye(len(CLASSES)) / deviation**2 + sums.T @ numpy.diag([each.precision for each in known]) @ sums
    covariance = numpy.linalg.inv(precision)
    row = sums[CLASSES.index(task_class)]
    mean = row @ covariance @ sums.T @ numpy.array([each.shift for each in known])
    return float(mean), float(row @ covariance @ row)


@settings(max_examples=100, deadline=None)
@given(EVIDENCE, st.floats(0.1, 2), st.sampled_from(CLASSES))
def test_a_belief_is_that_of_the_joint_gaussian(evidence: dict[str, OffsetEvidence], deviation: float, task_class: str) -> None:
    found = NestedOffsets(deviation, evidence).belief(task_class)
    assert found == pytest.approx(joint(deviation, evidence, task_class), rel=1e-6, abs=1e-8)


@settings(max_examples=50, deadline=None)
@given(EVIDENCE, EVIDENCE, st.sampled_from(CLASSES))
def test_replaced_evidence_leaves_nothing_behind(
    first: dict[str, OffsetEvidence], second: dict[str, OffsetEvidence], task_class: str
) -> None:
    offsets = NestedOffsets(0.5, first)
    for name, evidence in second.items():
        offsets.put(name, evidence)
    expected = NestedOffsets(0.5, {**first, **second}).belief(task_class)
    assert offsets.belief(task_class) == pytest.approx(expected, rel=1e-6, abs=1e-8)


def test_a_class_that_was_never_met_inherits_and_is_less_sure() -> None:
    offsets = NestedOffsets(0.5, {"a": OffsetEvidence(precision=40.0, shift=40.0, outcomes=200)})
    (mean, variance), (wider_mean, wider_variance) = offsets.belief("a/new"), offsets.belief("a")
    assert mean == pytest.approx(wider_mean)
    assert variance == pytest.approx(wider_variance + 0.25)
