"""Whatever strategy, session, budget or second opinion a policy asks for: what a rule keeps on the device reaches no far agent."""

import contextlib
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from situations import priced

from nearfar import Hybrid, Policy
from nearfar.orchestrator.hybrid.arguments import TaskOptions
from nearfar.orchestrator.task import Task
from nearfar.protocols import ConfigError, Message, NearfarError, PermissionDenied, PrivacyViolation, ScriptedAgent, Side, StepRequest

pytestmark = pytest.mark.anyio

PLAN = '{"subtasks": [{"id": "a", "task": "First half.", "needs": []}, {"id": "b", "task": "Second half.", "needs": ["a"]}]}'
KEEP = {"name": "keep", "when": {"tags": ["kept"]}, "mode": "only_on_device"}


def answer(request: StepRequest) -> str:
    """A plan where one is asked for, and a word otherwise."""
    return PLAN if request.output_schema is not None and "subtasks" in str(request.output_schema) else "word"


class Trio:
    """Two agents on the device and one in the cloud, which all answer anything."""

    def __init__(self, *, confidence: float | None = None) -> None:
        self.near = ScriptedAgent(answer, name="near", prices=priced(0), confidence=confidence)
        self.second = ScriptedAgent(answer, name="second", prices=priced(0))
        self.far = ScriptedAgent(answer, name="far", side=Side.FAR, prices=priced(1))

    def hybrid(self, policy: dict[str, Any] | None = None) -> Hybrid:
        given = Policy.model_validate({"sensitivity": "public", **(policy or {})})
        return Hybrid(near=self.near, far=self.far, agents={"second": self.second}, policy=given)


policies = st.fixed_dictionaries(
    {
        "mode": st.sampled_from(["auto", "prefer_in_cloud", "prefer_on_device", "only_in_cloud"]),
        "strategy": st.sampled_from(["device", "cloud", "route", "cascade", "pevr", "eva", "minions", "subtasks", "auto"]),
        "rules": st.lists(
            st.sampled_from(
                [
                    {"name": "cloud", "mode": "prefer_in_cloud"},
                    {"name": "large", "when": {"tokens": {"at_least": 20}}, "mode": "prefer_in_cloud", "agent": "far"},
                    {"name": "far", "agent": "far"},
                    {"name": "parts", "strategy": "subtasks"},
                    {"name": "routed", "strategy": "route"},
                ]
            ),
            max_size=3,
            unique_by=str,
        ),
        "router": st.sampled_from([{}, {"threshold": -9.0}, {"far_share": 0.9}, {"explore_share": 1.0}, {"shadow": True}]),
        "evidence": st.sampled_from([{}, {"second_opinion": "second"}, {"stop_below": 0.9}]),
        "subtasks": st.fixed_dictionaries({"strategy": st.sampled_from(["route", "cascade", "cloud", "pevr"])}),
    }
)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(policies, st.booleans(), st.booleans(), st.booleans())
async def test_no_policy_shows_a_kept_task_to_a_far_agent(policy: dict[str, Any], first: bool, has_context: bool, unsure: bool) -> None:
    rules = [KEEP, *policy["rules"]] if first else [*policy["rules"], KEEP]
    trio = Trio(confidence=0.1 if unsure else None)
    options: TaskOptions = {"tags": ["kept"], "session": "chat"}
    if has_context:
        options["context"] = "a long text " * 50
    with contextlib.suppress(NearfarError):
        async with trio.hybrid({**policy, "rules": rules}) as hybrid:
            hybrid._router.sessions.keep("chat", "far")
            await hybrid.run("Sum up.", **options)
    assert trio.far.requests == []


@pytest.mark.parametrize("strategy", ["route", "subtasks", "pevr", "cascade"])
async def test_a_graph_that_runs_by_itself_keeps_what_its_rules_keep(strategy: str) -> None:
    trio = Trio()
    policy = Policy.model_validate(
        {"sensitivity": "public", "strategy": strategy, "rules": [KEEP, {"name": "cloud", "mode": "prefer_in_cloud", "agent": "far"}]}
    )
    task = Task(messages=(Message.user("Sum up."),), policy=policy, tags=("kept",))
    async with trio.hybrid() as hybrid:
        with contextlib.suppress(NearfarError):
            await hybrid.graph_of(strategy).ainvoke({"task": task.model_dump(mode="json")})
    assert trio.far.requests == []


async def test_a_long_context_counts_where_rules_ask_for_the_length() -> None:
    trio = Trio()
    rule = {"name": "long", "when": {"tokens": {"at_least": 1000}}, "mode": "only_on_device"}
    async with trio.hybrid({"strategy": "subtasks", "rules": [rule]}) as hybrid:
        await hybrid.run("Sum up.", context="a long text " * 1000)
    assert trio.far.requests == []


async def test_a_ruling_on_the_whole_holds_for_its_parts() -> None:
    trio = Trio()
    rules = [
        {"name": "short", "when": {"tokens": {"below": 20}}, "mode": "only_on_device"},
        {"name": "long", "when": {"tokens": {"at_least": 20}}, "mode": "prefer_in_cloud", "agent": "far"},
    ]
    async with trio.hybrid({"strategy": "subtasks", "subtasks": {"strategy": "route"}, "rules": rules}) as hybrid:
        await hybrid.run("Sum up.")
    assert trio.far.requests == []


@pytest.mark.parametrize("language", ["DE", "de-AT", "de_CH"])
async def test_a_language_is_known_by_any_of_its_names(language: str) -> None:
    trio = Trio()
    rule = {"name": "german", "when": {"language": ["de"]}, "mode": "only_on_device"}
    async with trio.hybrid({"strategy": "route", "mode": "prefer_in_cloud", "rules": [rule]}) as hybrid:
        await hybrid.run("ok", language=language)
    assert trio.far.requests == []


async def test_every_turn_of_a_conversation_counts_for_its_language() -> None:
    pytest.importorskip("py3langid", reason="rules about the language need the extra 'router'")
    trio = Trio()
    rule = {"name": "german", "when": {"language": ["de"]}, "mode": "only_on_device"}
    said = [
        Message.user("Wie komme ich von hier am schnellsten zum Bahnhof?"),
        Message.assistant("Links."),
        Message.user("Thank you so much!"),
    ]
    async with trio.hybrid({"strategy": "route", "mode": "prefer_in_cloud", "rules": [rule]}) as hybrid:
        await hybrid.run(said)
    assert trio.far.requests == []


@pytest.mark.parametrize("name", ["far", "nobody"])
async def test_a_policy_said_with_a_task_is_checked_too(name: str) -> None:
    trio = Trio()
    async with trio.hybrid() as hybrid:
        with pytest.raises(ConfigError, match=name):
            await hybrid.run("Sum up.", policy=Policy.model_validate({"evidence": {"second_opinion": name}}))
    assert trio.far.requests == []


async def test_a_mode_of_the_policy_is_not_widened_by_a_rule_that_prefers() -> None:
    trio = Trio()
    policy = {"strategy": "route", "mode": "only_on_device", "rules": [{"name": "cloud", "mode": "prefer_in_cloud"}]}
    async with trio.hybrid(policy) as hybrid:
        await hybrid.run("Sum up.")
    assert trio.far.requests == []


async def test_a_task_that_is_to_leave_the_device_against_a_rule_is_refused() -> None:
    trio = Trio()
    async with trio.hybrid({"strategy": "route", "rules": [KEEP]}) as hybrid:
        with pytest.raises(PrivacyViolation, match="keep"):
            await hybrid.run("Sum up.", mode="only_in_cloud", tags=["kept"])
        with pytest.raises((PrivacyViolation, PermissionDenied, ConfigError)):
            await hybrid.run("Sum up.", strategy="cloud", tags=["kept"])
    assert trio.far.requests == []


@pytest.mark.parametrize("strategy", ["cloud", "route", "cascade", "pevr", "subtasks"])
async def test_the_same_task_reaches_the_cloud_where_nothing_keeps_it(strategy: str) -> None:
    trio = Trio(confidence=0.1)
    async with trio.hybrid({"strategy": strategy, "mode": "prefer_in_cloud", "rules": [KEEP]}) as hybrid:
        with contextlib.suppress(NearfarError):
            await hybrid.run("Sum up.")
    assert trio.far.requests != []
