"""Cards by role: the shipped one, how it is bound to agents, shared, and read from hostile files."""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from nearfar.orchestrator.cli import app
from nearfar.orchestrator.routing.answers import Answer
from nearfar.orchestrator.routing.drafts import DEFAULT_CARD, baked, bind, by_role, default_escalation, is_by_role
from nearfar.orchestrator.routing.escalation import LARGEST_FILE, Action, Escalation, read_card
from nearfar.orchestrator.routing.looks import FREE, LENGTH, Cost, Signal, free_findings, second_opinion
from nearfar.protocols import ConfigError, ToolCall

ASKED = "How many sheep are on the meadow?"


def findings(draft: str, **opinions: str) -> dict[str, Signal]:
    """Return what the free looks and some opinions find."""
    free = free_findings(ASKED, draft, is_valid=None, is_grounded=None, confidence=None)
    return free | {agent: second_opinion(Answer.of_text(draft), Answer.of_text(said)) for agent, said in opinions.items()}


def gain(escalation: Escalation, found: dict[str, Signal]) -> float:
    draft, far = escalation.probabilities(found)
    return far - draft


def test_the_shipped_card_is_small_and_tells_where_it_comes_from() -> None:
    card = read_card(DEFAULT_CARD)
    assert DEFAULT_CARD.stat().st_size <= 50_000
    assert card.provenance is not None
    assert set(card.provenance.licences) == {"Apache-2.0"}
    assert not any("bfcl" in name for name in card.provenance.sets)
    assert is_by_role(card)


def test_the_default_card_trusts_a_draft_the_more_agents_give_the_same_answer() -> None:
    escalation = default_escalation(draft="small", far="large", opinions=["a", "b"])
    gains = [gain(escalation, findings("12", a=first, b=second)) for first, second in (("12", "12"), ("12", "13"), ("13", "14"))]
    assert gains == sorted(gains)
    assert gains[0] < 0.1 < gains[-1]


def test_the_default_card_weighs_a_draft_without_any_opinion_and_with_one() -> None:
    alone = default_escalation(draft="small", far="large", opinions=[])
    assert alone.looks == FREE
    one = default_escalation(draft="small", far="large", opinions=["a"])
    assert gain(one, findings("12", a="12")) < gain(alone, findings("12")) < gain(one, findings("12", a="13"))


@pytest.mark.parametrize("length", [0.0, 1.0, 4.0, 6.0])
def test_an_output_however_short_leaves_the_opinion_to_decide(length: float) -> None:
    escalation = default_escalation(draft="small", far="large", opinions=["a"])
    agreed, differed = (
        gain(escalation, {"draft": Signal({LENGTH: length}), "a": Signal({"agrees": agrees, LENGTH: length})}) for agrees in (1.0, 0.0)
    )
    assert agreed < differed - 0.1


def test_the_shipped_card_counts_lengths_no_farther_out_than_they_move_the_odds_by_one() -> None:
    card = read_card(DEFAULT_CARD)
    for fit in card.fits:
        looks = [look for look in card.looks if look.is_free or look.name in fit.seen]
        names = [name for look in looks for name in ("", *look.measures)]
        for name, most, *weights in zip(names, fit.farthest, fit.draft, fit.far, strict=False):
            assert most == 2 or (name == LENGTH and most * max(map(abs, weights)) <= 1.001)


def test_the_order_of_opinions_makes_next_to_no_difference() -> None:
    escalation = default_escalation(draft="small", far="large", opinions=["a", "b"])
    assert gain(escalation, findings("12", a="12", b="13")) == pytest.approx(gain(escalation, findings("12", a="13", b="12")), abs=0.01)


def test_the_default_card_knows_tool_calls_that_agree_from_those_that_do_not() -> None:
    escalation = default_escalation(draft="small", far="large", opinions=["a"])
    draft, other = (Answer.of_calls([ToolCall(id="1", name="count", arguments={"what": what})]) for what in ("sheep", "goats"))
    free = free_findings(ASKED, "", is_valid=None, is_grounded=None, confidence=None) | {"draft": Signal({}, draft)}
    same, different = (free | {"a": second_opinion(draft, opinion)} for opinion in (draft, other))
    assert gain(escalation, same) < gain(escalation, different)


@pytest.mark.parametrize("seen", [{"is_grounded": (True, False)}, {"is_valid": (True, False)}, {"confidence": (0.9, 0.1)}])
def test_a_draft_that_is_ungrounded_invalid_or_unsure_is_trusted_less(seen: dict[str, tuple[Any, Any]]) -> None:
    escalation = default_escalation(draft="small", far="large", opinions=[])
    unknown = {"is_valid": None, "is_grounded": None, "confidence": None}
    ((name, values),) = seen.items()
    better, worse = (gain(escalation, free_findings(ASKED, "12", **{**unknown, name: value})) for value in values)
    assert better < worse


def test_an_opinion_is_asked_for_where_it_may_change_the_decision_and_not_where_it_is_too_dear() -> None:
    pytest.importorskip("numpy")
    cheap = default_escalation(draft="small", far="large", opinions=["a"])
    assert cheap.decide(findings("12"), far=Cost(dollars=0.3)).look == "a"
    dear = default_escalation(draft="small", far="large", opinions=["a"], costs={"a": Cost(dollars=10)})
    assert dear.decide(findings("12"), far=Cost(dollars=0.3)).action is not Action.LOOK


def test_a_shared_card_names_no_agent_and_decides_the_same_when_it_is_bound_again() -> None:
    bound = bind(read_card(DEFAULT_CARD), draft="my-near", far="my-far", opinions=["my-second"])
    shared = by_role(bound)
    assert "my-" not in shared.model_dump_json()
    again = bind(shared, draft="my-near", far="my-far", opinions=["my-second"])
    found = findings("12", **{"my-second": "13"})
    assert Escalation(again).probabilities(found) == Escalation(bound).probabilities(found)


def test_what_was_learned_online_can_be_baked_in() -> None:
    card = bind(read_card(DEFAULT_CARD), draft="small", far="large", opinions=[])
    moved = Escalation(card).moved(draft=0.5, far=-0.2).probabilities(findings("12"))
    found = baked(card, draft=0.5, far=-0.2, outcomes=30)
    assert Escalation(found).probabilities(findings("12")) == pytest.approx(moved, abs=1e-5)
    assert found.provenance is not None
    assert found.provenance.baked_in == 30


def damaged(**changes: Any) -> str:  # noqa: ANN401 - any JSON
    return json.dumps({**json.loads(DEFAULT_CARD.read_text()), **changes})


def with_fit(**changes: Any) -> str:  # noqa: ANN401 - any JSON
    fits = json.loads(DEFAULT_CARD.read_text())["fits"]
    return damaged(fits=[{**fits[0], **changes}, *fits[1:]])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "Invalid JSON"),
        (damaged(prompt="secret", version="escalation/2"), "reads escalation/1, and it is 'escalation/2'"),
        (damaged(prompt="secret"), "Extra inputs are not permitted"),
        (damaged(fits=[]), "at least 1 item"),
        (damaged(outlooks=[]), "one outlook for each further look"),
        (with_fit(draft=[1e9] * 11), "less than or equal to 100"),
        (with_fit(draft=[float("nan")] * 11), "finite number"),
        (with_fit(scale=[0.0] * 10), "greater than 0"),
        (with_fit(draft=[0.1]), "a fit is to have 10 measures"),
        (with_fit(seen=["an unknown look"]), "one fit for each set of looks"),
        (with_fit(farthest=[1e6] * 10), "less than or equal to 4"),
        (" " * (LARGEST_FILE + 1), "more than 1,000,000 bytes"),
    ],
)
def test_a_hostile_card_is_refused_with_its_first_problem(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "card.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=problem) as refused:
        read_card(path)
    assert "secret" not in str(refused.value)


def test_a_card_is_not_read_from_a_device_without_an_end() -> None:
    with pytest.raises(ConfigError, match="it is a pipe or a device"):
        read_card(Path("/dev/zero"))


@pytest.mark.parametrize(
    ("draft", "far", "opinions"),
    [("near", "near", []), ("near", "far", ["a", "a"]), ("near", "far", ["prompt"]), ("", "far", []), ("near", "x\ny", [])],
)
def test_a_card_is_not_bound_to_names_that_it_could_not_be_read_with(draft: str, far: str, opinions: list[str]) -> None:
    with pytest.raises(ConfigError, match="two roles|cannot be bound"):
        bind(read_card(DEFAULT_CARD), draft=draft, far=far, opinions=opinions)


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(field=st.sampled_from(sorted(json.loads(DEFAULT_CARD.read_text()))), value=JSON)
def test_a_card_with_any_value_in_any_field_is_refused_or_gives_probabilities(tmp_path: Path, field: str, value: object) -> None:
    path = tmp_path / "card.json"
    path.write_text(damaged(**{field: value}))
    try:
        escalation = Escalation(bind(read_card(path), draft="small", far="large", opinions=["a"]))
    except ConfigError:
        return
    assert all(0 <= probability <= 1 for probability in escalation.probabilities({}))


def nearfar(*arguments: str) -> str:
    found = CliRunner().invoke(app, ["policy", "card", *arguments])
    assert found.exit_code == 0, found.output
    return found.output


def test_a_card_is_exported_shown_and_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    nearfar("export", "shared.json")
    assert "Apache-2.0" in nearfar("show", "shared.json")
    nearfar("import", "shared.json", "--draft", "phone", "--far", "cloud", "--opinion", "tablet")
    card = read_card(tmp_path / "escalation.json")
    assert (card.draft, card.far, card.looks[-1].name) == ("phone", "cloud", "tablet")


def test_a_card_that_the_disk_has_no_room_for_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_room: Callable[[int], AbstractContextManager[None]]
) -> None:
    monkeypatch.chdir(tmp_path)
    nearfar("export", "shared.json")
    before = (tmp_path / "shared.json").read_bytes()
    with no_room(1_000):
        failed = CliRunner().invoke(app, ["policy", "card", "export", "shared.json"])
    assert failed.exit_code == 2
    assert "cannot be written" in failed.output
    assert "free some space" in failed.output
    assert (tmp_path / "shared.json").read_bytes() == before


def test_a_card_that_names_agents_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Escalation(bind(read_card(DEFAULT_CARD), draft="phone", far="cloud", opinions=[])).save(tmp_path / "card.json")
    found = CliRunner().invoke(app, ["policy", "card", "import", "card.json"])
    assert found.exit_code == 2
    assert "names agents in place of roles" in found.output
