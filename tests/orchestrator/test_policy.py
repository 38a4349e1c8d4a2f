"""The hard rules of the router."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearfar.orchestrator.routing.eligibility import Eligible, eligible
from nearfar.orchestrator.task import Needs
from nearfar.orchestrator.task.modes import Mode, Strategy
from nearfar.protocols import Capabilities, ConfigError, NearfarError, Prices, PrivacyViolation, Sensitivity, Side, Unsupported


@dataclass(frozen=True)
class Stand:
    """An agent as the rules see it."""

    name: str
    side: Side
    capabilities: Capabilities | None = None
    prices: Prices | None = None


NOTHING = Needs()
NEAR, FAR = Stand("near", Side.NEAR), Stand("far", Side.FAR)


def candidates(
    strategy: Strategy,
    mode: Mode = Mode.AUTO,
    *,
    agents: tuple[Stand, ...] = (NEAR, FAR),
    sensitivity: Sensitivity = Sensitivity.PUBLIC,
    needs: Needs = NOTHING,
) -> tuple[str, ...]:
    return names(eligible(agents, strategy=strategy, mode=mode, sensitivity=sensitivity, needs=needs))


def names(found: Eligible) -> tuple[str, ...]:
    return tuple(agent.name for agent in found.agents)


@pytest.mark.parametrize(
    ("strategy", "mode", "expected"),
    [
        (Strategy.DEVICE, Mode.AUTO, ("near",)),
        (Strategy.CLOUD, Mode.AUTO, ("far", "near")),
        (Strategy.CLOUD, Mode.ONLY_IN_CLOUD, ("far",)),
        (Strategy.ROUTE, Mode.PREFER_ON_DEVICE, ("near", "far")),
        (Strategy.ROUTE, Mode.PREFER_IN_CLOUD, ("far", "near")),
        (Strategy.ROUTE, Mode.ONLY_ON_DEVICE, ("near",)),
        (Strategy.ROUTE, Mode.ONLY_IN_CLOUD, ("far",)),
        (Strategy.CASCADE, Mode.AUTO, ("near", "far")),
        (Strategy.CASCADE, Mode.PREFER_IN_CLOUD, ("near", "far")),
    ],
)
def test_strategy_and_mode_order_the_sides(strategy: Strategy, mode: Mode, expected: tuple[str, ...]) -> None:
    assert candidates(strategy, mode) == expected


@pytest.mark.parametrize(("strategy", "mode"), [(Strategy.DEVICE, Mode.ONLY_IN_CLOUD), (Strategy.CLOUD, Mode.ONLY_ON_DEVICE)])
def test_a_contradiction_is_refused(strategy: Strategy, mode: Mode) -> None:
    with pytest.raises(ConfigError, match="contradicts"):
        candidates(strategy, mode)


def test_a_side_that_is_not_configured_is_named() -> None:
    with pytest.raises(ConfigError, match="far"):
        candidates(Strategy.CLOUD, Mode.ONLY_IN_CLOUD, agents=(NEAR,))


def test_asking_for_the_cloud_without_a_far_agent_is_refused() -> None:
    with pytest.raises(ConfigError, match="far"):
        candidates(Strategy.CLOUD, agents=(NEAR,))


@pytest.mark.parametrize("mode", [Mode.AUTO, Mode.PREFER_IN_CLOUD])
def test_asking_for_the_cloud_with_a_private_task_is_refused(mode: Mode) -> None:
    with pytest.raises(PrivacyViolation):
        candidates(Strategy.CLOUD, mode, sensitivity=Sensitivity.PRIVATE)


def test_a_private_task_is_refused_where_only_far_agents_could_serve_it() -> None:
    with pytest.raises(PrivacyViolation, match="private"):
        candidates(Strategy.CLOUD, Mode.ONLY_IN_CLOUD, sensitivity=Sensitivity.PRIVATE)


def test_an_agent_without_a_needed_capability_is_left_out_and_named() -> None:
    plain = Stand("near", Side.NEAR, Capabilities())
    found = eligible((plain, FAR), strategy=Strategy.CASCADE, mode=Mode.AUTO, sensitivity=Sensitivity.PUBLIC, needs=Needs(tools=True))
    assert names(found) == ("far",)
    assert any("near left out: it lacks tools" in reason for reason in found.reasons)


def test_a_task_that_nobody_can_serve_is_unsupported() -> None:
    plain = Stand("near", Side.NEAR, Capabilities())
    with pytest.raises(Unsupported):
        candidates(Strategy.DEVICE, agents=(plain,), needs=Needs(json_schema=True))


@given(st.sampled_from(Strategy), st.sampled_from(Mode), st.booleans(), st.booleans())
def test_private_text_never_reaches_a_far_agent(strategy: Strategy, mode: Mode, tools: bool, json_schema: bool) -> None:
    try:
        chosen = candidates(strategy, mode, sensitivity=Sensitivity.PRIVATE, needs=Needs(tools=tools, json_schema=json_schema))
    except NearfarError:
        return
    assert chosen == ("near",)
