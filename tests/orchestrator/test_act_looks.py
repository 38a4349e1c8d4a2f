"""The look before an act: calls that change something are judged before they run, by where their arguments come from, and by opinions."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from nearfar import Hybrid, Policy, Result, Tool, tool
from nearfar.orchestrator.routing.call_looks import call_findings, call_opinion, text_of_calls, unmentioned_arguments
from nearfar.orchestrator.routing.escalation import Escalation
from nearfar.orchestrator.routing.looks import Cost
from nearfar.orchestrator.routing.traces import AgentOutcome, Trace, read_traces
from nearfar.orchestrator.routing.training import draft_examples_of, train_escalation
from nearfar.orchestrator.task.stores import RunsConfig
from nearfar.protocols import (
    ApprovalRequest,
    ConfigError,
    ScriptedAgent,
    Side,
    StepRequest,
    ToolCall,
    ToolSpec,
    Unavailable,
)
from nearfar.protocols.fakes import Reply

pytestmark = pytest.mark.anyio

ASKED = "Pay Ann 5 dollars"
DONE = "500 cents went to ann"
SECOND = {"evidence": {"second_opinion": "second"}}


def pays(to: str, cents: int = 500) -> ToolCall:
    return ToolCall(id="1", name="pay", arguments={"to": to, "cents": cents})


class Shop:
    """Two agents on the device, one in the cloud, and a bank."""

    def __init__(self, near: Sequence[Reply], second: Sequence[Reply] = (), far: Sequence[Reply] = ()) -> None:
        self.near = ScriptedAgent(near, name="near")
        self.second = ScriptedAgent(second, name="second")
        self.far = ScriptedAgent(far, name="far", side=Side.FAR)
        self.paid: list[str] = []

    def pay(self, to: str, cents: int) -> str:
        """Pay a person."""
        self.paid.append(to)
        return f"{cents} cents went to {to}"

    async def ask(self, policy: Mapping[str, Any] | None = None, *, tools: Sequence[Tool] = (), **options: Any) -> Result:  # noqa: ANN401 - options of any task
        settings = Policy.model_validate({"strategy": "cascade", "sensitivity": "public", **(policy or {})})
        agents = {"second": self.second}
        async with Hybrid(near=self.near, far=self.far, agents=agents, tools=tools or [tool(self.pay)], policy=settings) as hybrid:
            return await hybrid.run(ASKED, **options)


async def test_a_call_whose_argument_was_mentioned_nowhere_is_not_run_and_the_far_agent_takes_over() -> None:
    shop = Shop([pays("mallory")], far=[pays("ann"), "Paid."])
    result = await shop.ask()
    assert (shop.paid, result.agent) == (["ann"], "far")
    rejected = result.attempts[0]
    assert rejected.reason == "nothing that was said or found mentions its to, so pay was not called"
    assert rejected.answer == text_of_calls([pays("mallory")])
    (look,) = rejected.acts
    assert (look.step, look.tools, look.findings["grounding"]) == (1, ("pay",), {"unmentioned arguments": 1})
    assert "mallory" not in look.model_dump_json()


@pytest.mark.parametrize(
    ("said", "value"),
    [
        ("Pay by paypal", "PayPal"),
        ("Clone it from GitHub", "github"),
        ("Fly to Zurich", "Zürich"),
        ("Meet me on March 4", "2026-03-04"),
        ("Meet me tomorrow at 3 pm", "2026-11-27T15:00:00+01:00"),
        ("Send fifty euros", "EUR"),
        ("Pay DE89 3704 0044 0532 0130 00", "DE89370400440532013000"),
        ("Call 0170 1234567", "+491701234567"),
        ("Delete all logs", "*.log"),
        ("田中さんに50円払って", "田中"),
        ("Заплати Анне 50", "Анна"),
    ],
)
def test_an_argument_may_be_written_otherwise_than_it_was_said(said: str, value: str) -> None:
    assert unmentioned_arguments(pays(value), PAY, said) == []


@pytest.mark.parametrize(
    ("said", "value"),
    [
        ("Pay my landlord", "12345678"),
        ("Pay account 12345678", "87654321"),
        ("Book a room for Ann", "2023-10-05"),
        ("田中さんに50円払って", "鈴木"),
        ("Заплати Анне 50", "Борис"),
    ],
)
def test_an_argument_that_was_made_up_is_told_in_any_script(said: str, value: str) -> None:
    assert unmentioned_arguments(pays(value), PAY, said) == ["to"]


def test_a_key_that_was_made_up_is_told_too() -> None:
    call = ToolCall(id="1", name="pay", arguments={"to": {"mallory": [1]}})
    assert unmentioned_arguments(call, PAY, "Pay Ann 5 dollars") == ["to"]


async def test_a_grounded_call_runs_and_its_looks_are_on_record() -> None:
    shop = Shop([pays("ann"), DONE])
    result = await shop.ask()
    assert (shop.paid, result.agent) == (["ann"], "near")
    (look,) = result.attempts[0].acts
    assert (look.doubt, look.findings["schema"]["is valid"], look.findings["grounding"]["unmentioned arguments"]) == (None, 1, 0)


async def test_an_argument_may_come_from_what_a_tool_has_found() -> None:
    @tool(effect="read")
    def landlady() -> str:
        """Find the landlady."""
        return "Mrs. Kowalska"

    shop = Shop([ToolCall(id="0", name="landlady", arguments={}), pays("Kowalska"), "500 cents went to Kowalska"])
    result = await shop.ask(tools=[tool(shop.pay), landlady])
    assert (shop.paid, result.agent) == (["Kowalska"], "near")


async def test_what_the_schema_offers_and_what_does_not_decide_need_not_be_mentioned() -> None:
    sent = []

    @tool(sinks=["to"])
    def write(to: str, text: str) -> str:
        """Write to somebody."""
        sent.append(to)
        return "sent"

    call = ToolCall(id="1", name="write", arguments={"to": "ann", "text": "Greetings"})
    await Shop([call, "Sent."]).ask(tools=[write])
    assert sent == ["ann"]


@pytest.mark.parametrize("policy", [{}, SECOND])
async def test_a_call_that_only_reads_is_never_held_back(policy: dict[str, object]) -> None:
    @tool(effect="read")
    def find(name: str) -> str:
        """Find a person."""
        return f"{name} was found"

    shop = Shop([ToolCall(id="1", name="find", arguments={"name": "mallory"}), "mallory was found"], ["mallory was found"])
    result = await shop.ask(policy, tools=[find])
    assert [(made.agent, made.outcome) for made in result.tool_calls] == [("near", "done")]
    assert result.attempts[0].acts == ()


async def test_calls_run_unjudged_where_the_policy_says_so() -> None:
    shop = Shop([pays("mallory"), "500 cents went to mallory"])
    await shop.ask({"evidence": {"before_acts": False}})
    assert shop.paid == ["mallory"]


async def test_a_second_agent_that_would_make_other_calls_holds_them_back() -> None:
    shop = Shop([pays("ann", 50000)], [pays("ann", 500)], [pays("ann"), "Paid."])
    result = await shop.ask(SECOND)
    assert (shop.paid, result.agent) == (["ann"], "far")
    assert result.attempts[0].reason == "second would make other calls, so pay was not called"
    assert result.attempts[0].opinions == {"second": text_of_calls([pays("ann", 500)])}
    assert [(call.agent, call.role) for call in result.calls[:2]] == [("near", "execute"), ("second", "second_opinion")]


async def test_a_second_agent_that_would_make_the_same_calls_lets_them_run_once() -> None:
    shop = Shop([pays("ann"), DONE], [pays("Ann"), DONE])
    result = await shop.ask(SECOND)
    assert (shop.paid, result.agent, shop.far.requests) == (["ann"], "near", [])
    asked = shop.second.requests[0]
    assert [spec.name for spec in asked.tools] == ["pay"]
    assert asked.messages == shop.near.requests[0].messages


async def test_only_the_arguments_that_decide_need_to_agree() -> None:
    sent = []

    @tool(sinks=["to"])
    def write(to: str, text: str) -> str:
        """Write to somebody."""
        sent.append(text)
        return "sent"

    def writes(text: str) -> ToolCall:
        return ToolCall(id="1", name="write", arguments={"to": "ann", "text": text})

    await Shop([writes("Here are 5 dollars"), "sent"], [writes("You get 5 dollars"), "sent"]).ask(SECOND, tools=[write])
    assert sent == ["Here are 5 dollars"]


async def test_a_default_that_only_one_agent_writes_out_makes_no_difference() -> None:
    paid = []

    @tool
    def pay(to: str, cents: int = 500) -> str:
        """Pay a person."""
        paid.append(cents)
        return f"{cents} cents went to {to}"

    short = ToolCall(id="1", name="pay", arguments={"to": "ann"})
    result = await Shop([short, DONE], [pays("ann"), DONE]).ask(SECOND, tools=[pay])
    assert (paid, result.agent) == ([500], "near")


@pytest.mark.parametrize("strategy", ["pevr", "eva"])
async def test_a_supervisor_is_asked_where_an_opinion_differs(strategy: str) -> None:
    plan = ["1. pay\n2. answer"] if strategy == "pevr" else []
    shop = Shop([pays("ann"), DONE], [pays("bob")], [*plan, "CONTINUE"])
    result = await shop.ask({"strategy": strategy, **SECOND})
    assert (shop.paid, result.agent) == (["ann"], "near")
    assert [call.trigger for call in result.calls if call.role == "verify"] == ["act"]
    assert [look.doubt for look in result.attempts[0].acts] == ["second would make other calls, so pay was not called"]


async def test_an_opinion_that_cannot_be_had_speaks_neither_for_nor_against_the_calls() -> None:
    shop = Shop([pays("ann"), DONE], [Unavailable("gone"), Unavailable("gone")])
    result = await shop.ask(SECOND)
    assert (shop.paid, result.agent) == (["ann"], "near")


async def test_an_opinion_of_an_agent_far_away_is_refused() -> None:
    with pytest.raises(ConfigError, match="looks stay on this device"):
        await Shop([pays("ann")]).ask({"evidence": {"second_opinion": "far"}})


async def test_a_private_task_without_another_near_agent_acts_by_itself() -> None:
    shop = Shop([pays("mallory"), "Paid."])
    async with Hybrid(
        near=shop.near, far=shop.far, tools=[tool(shop.pay)], policy=Policy.model_validate({"strategy": "cascade"})
    ) as hybrid:
        await hybrid.run(ASKED)
    assert (shop.paid, shop.far.requests) == (["mallory"], [])


async def test_an_approval_is_asked_once_behind_the_looks() -> None:
    asked: list[str] = []

    async def approve(requests: Sequence[ApprovalRequest]) -> dict[str, bool]:
        asked.extend(str(request.call.arguments["to"]) for request in requests)
        return {request.id: True for request in requests}

    shop = Shop([pays("mallory")], far=[pays("ann"), "Paid."])
    policy = Policy.model_validate({"strategy": "cascade", "sensitivity": "public"})
    guarded = tool(approval=True)(shop.pay)
    async with Hybrid(near=shop.near, far=shop.far, tools=[guarded], policy=policy) as hybrid:
        await hybrid.run(ASKED, approver=approve)
    assert (asked, shop.paid) == (["ann"], ["ann"])


async def test_a_run_that_is_resumed_amid_an_opinion_asks_the_draft_agent_once(tmp_path: Path) -> None:
    class Killed(Exception):
        pass

    asked: list[str] = []

    def near(request: StepRequest) -> Reply:
        asked.append("near")
        return DONE if request.messages[-1].role == "tool" else pays("ann")

    def second(request: StepRequest) -> Reply:
        asked.append(request.idempotency_key.split("/", 1)[1])
        if len(asked) == 2:
            raise Killed
        return DONE if request.messages[-1].role == "tool" else pays("ann")

    shop = Shop([])
    for is_first in (True, False):
        agents = {"second": ScriptedAgent(second, name="second")}
        far = ScriptedAgent([], name="far", side=Side.FAR)
        policy = Policy.model_validate({"strategy": "cascade", "sensitivity": "public", **SECOND})
        records = RunsConfig(folder=tmp_path / "runs")
        near_agent = ScriptedAgent(near, name="near")
        async with Hybrid(near=near_agent, far=far, agents=agents, tools=[tool(shop.pay)], policy=policy, records=records) as hybrid:
            if is_first:
                with pytest.raises(Killed):
                    await hybrid.run(ASKED, idempotency_key="k")
            else:
                assert (await hybrid.resume("k")).text == DONE
    assert asked[:3] == ["near", "0/1/opinion/second", "0/1/opinion/second"]
    assert asked.count("0/1/opinion/second") == 2, "it was under way when the process died, and has the same key"
    assert (asked.count("near"), shop.paid) == (2, ["ann"])


PAY = ToolSpec(
    name="pay",
    description="Pay a person.",
    parameters={
        "type": "object",
        "properties": {"to": {"type": "string"}, "cents": {"type": "integer"}},
        "required": ["to", "cents"],
    },
)


def call_traces() -> list[Trace]:
    """Drafts that are calls: those that the second agent agrees with are right."""
    traces = []
    for number in range(200):
        is_right = number % 2 == 0
        right = [ToolCall(id="1", name="pay", arguments={"to": "ann", "cents": number})]
        wrong = [ToolCall(id="1", name="pay", arguments={"to": "bob", "cents": number})]
        outcomes = {
            "near": AgentOutcome(score=float(is_right), answer=text_of_calls(right if is_right else wrong)),
            "second": AgentOutcome(answer=text_of_calls(right), has_prose=False),
            "far": AgentOutcome(score=float(number % 40 != 1)),
        }
        traces.append(Trace(prompt=f"Pay ann and not bob {number} cents", specs=(PAY,), outcomes=outcomes))
    return traces


def learned(path: Path) -> Path:
    pytest.importorskip("numpy")
    examples = draft_examples_of(call_traces(), draft="near", far="far", opinions={"second": Cost(seconds=0.1)})
    Escalation(train_escalation(examples)).save(path)
    return path


async def test_a_strategy_measures_all_that_an_escalation_was_trained_on(tmp_path: Path) -> None:
    card = Escalation.load(learned(tmp_path / "card.json")).card
    result = await Shop([pays("ann"), DONE], [pays("ann")]).ask(
        {"evidence": {"escalation": tmp_path / "card.json"}, "objective": {"dollars": 30}}
    )
    (look,) = result.attempts[0].acts
    measured = {name: set(found) for name, found in look.findings.items()}
    trained = {look.name: set(look.measures) for look in card.looks}
    assert measured | {"prompt": set()} == trained | {"prompt": set()}
    assert trained["prompt"] <= measured["prompt"], "without a head, traces tell nothing of what it predicts"


async def test_an_escalation_that_was_trained_on_calls_weighs_them_before_they_run(tmp_path: Path) -> None:
    policy = {"evidence": {"escalation": learned(tmp_path / "card.json")}, "objective": {"dollars": 30}}
    agreed = Shop([pays("ann"), DONE], [pays("ann")])
    result = await agreed.ask(policy)
    assert (agreed.paid, result.agent) == (["ann"], "near")
    assert set(result.attempts[0].acts[0].findings) == {"prompt", "draft", "schema", "second"}
    held = Shop([pays("bob")], [pays("ann")], [pays("ann"), "Paid."])
    result = await held.ask(policy)
    assert (held.paid, result.agent) == (["ann"], "far")
    assert "the draft is right with" in result.attempts[0].reason
    assert result.attempts[0].reason.endswith("so pay was not called")


async def test_an_opinion_on_calls_is_not_bought_where_it_is_not_worth_its_price(tmp_path: Path) -> None:
    policy = {"evidence": {"escalation": learned(tmp_path / "card.json")}, "objective": {"dollars": 1e6, "seconds": 50}}
    shop = Shop([pays("ann"), DONE])
    await shop.ask(policy)
    assert (shop.paid, shop.second.requests) == (["ann"], [])


def test_training_takes_the_looks_that_a_strategy_takes() -> None:
    trace = call_traces()[1]
    (found,) = draft_examples_of([trace], draft="near", far="far", opinions={"second": Cost()}).findings
    draft, opinion = [pays("bob", 1)], [pays("ann", 1)]
    free = call_findings(draft, [PAY], prompt=trace.prompt, told=trace.prompt, confidence=None)
    assert found == {
        **{name: signal for name, signal in free.items() if signal.measures},
        "second": call_opinion(draft, opinion, [PAY], has_prose=False),
    }


async def test_calls_that_were_held_back_can_be_read_as_traces(tmp_path: Path) -> None:
    log = tmp_path / "decisions.jsonl"
    await Shop([pays("ann", 50000)], [pays("ann")], ["Paid."]).ask({**SECOND, "router": {"log": log}})
    (trace,) = read_traces(log)
    assert trace.outcomes["near"].answer == text_of_calls([pays("ann", 50000)])
    assert trace.outcomes["second"].answer == text_of_calls([pays("ann")])
    assert [spec.name for spec in trace.specs] == ["pay"]
