"""Verifiers of drafts: verdicts of judges, priors and rubrics, and the outcomes that correct them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from nearfar import Attempt, ConfigError, Hybrid, InvalidRequest, Message, Result, ScriptedAgent, Side, StepRequest, ToolCall, tool
from nearfar.orchestrator.routing.outcome_records import Faults, ReportedFault
from nearfar.orchestrator.routing.traces import read_traces
from nearfar.orchestrator.routing.training import draft_examples_of
from nearfar.orchestrator.strategies.prompts import JUDGE, PLAN, PRIOR
from nearfar.orchestrator.strategies.verifying import CandidateEvidence, GroundedVerifier, SchemaVerifier
from nearfar.orchestrator.task import Task
from nearfar.protocols import Capabilities
from nearfar.protocols.fakes import Reply
from nearfar.protocols.items import Tier

QUESTION = "Is the invoice of Mira Falk paid?"
pytestmark = pytest.mark.anyio
WITHOUT_LOGPROBS = Capabilities(tools=True, json_schema=True)


@tool(effect="read", source="internal_tool")
async def invoices(name: str) -> str:
    """List invoices."""
    return f"{name}: paid"


def system_of(request: StepRequest) -> str:
    return request.messages[0].text if request.messages[0].role == "system" else ""


class Judge(ScriptedAgent):
    """A far agent that answers tasks with `later`, writes a prior, and judges by what it is shown."""

    def __init__(self, verdict: str | Sequence[str], *, confidence: float = 0.9, capabilities: Capabilities | None = None) -> None:
        self.verdicts: list[StepRequest] = []
        self.priors: list[StepRequest] = []
        self._said = [verdict] if isinstance(verdict, str) else list(verdict)
        super().__init__(self._reply, name="far", side=Side.FAR, confidence=confidence, capabilities=capabilities)

    def wear(self, *adapters: str) -> None:
        """Claim adapters."""
        self._card = self._card.model_copy(update={"adapters": adapters})

    def _reply(self, request: StepRequest) -> Reply:
        if system_of(request) == PRIOR:
            self.priors.append(request)
            return "1. The invoice of Mira Falk was looked up.\n2. The answer is yes or no."
        if system_of(request).startswith(JUDGE):
            self.verdicts.append(request)
            return self._said[(len(self.verdicts) - 1) % len(self._said)]
        return "later"


def hybrid_of(judge: ScriptedAgent, *kinds: str, answers: Sequence[Reply] = ("yes",) * 50, **policy: Any) -> Hybrid:  # noqa: ANN401 - sections of every kind
    evidence = {"verifiers": kinds, **policy.pop("evidence", {})}
    settings = {"strategy": "cascade", "sensitivity": "public", "evidence": evidence, **policy}
    return Hybrid(near=ScriptedAgent(answers, name="near", confidence=0.9), far=judge, policy=settings)


async def test_a_draft_that_the_judge_takes_for_wrong_is_left_to_the_far_agent() -> None:
    judge = Judge("No invoice was looked up.\nRight: No")
    async with hybrid_of(judge, "outcome") as hybrid:
        result = await hybrid.run(QUESTION)
    assert (result.text, result.agent) == ("later", "far")
    assert [call.role for call in result.calls] == ["execute", "outcome", "execute"]
    verdict = result.attempts[0].verified["outcome"]
    assert verdict.judge == "far"
    assert verdict.raw == pytest.approx(0.1)
    assert "takes it for right with" in result.attempts[0].reason


async def test_a_draft_that_the_judge_takes_for_right_stands() -> None:
    judge = Judge("Right: Yes")
    async with hybrid_of(judge, "outcome") as hybrid:
        result = await hybrid.run(QUESTION)
    assert (result.text, result.agent) == ("yes", "near")
    assert result.attempts[0].verified["outcome"].raw == pytest.approx(0.9)
    assert "yes" in judge.verdicts[0].messages[-1].text


@pytest.mark.parametrize("capabilities", [None, WITHOUT_LOGPROBS], ids=["log-probabilities", "words"])
async def test_a_judge_wears_its_adapter_for_verdicts_alone(capabilities: Capabilities | None) -> None:
    judge = Judge("Right: No", capabilities=capabilities)
    judge.wear("judge", "text")
    async with hybrid_of(judge, "outcome") as hybrid:
        await hybrid.run(QUESTION)
    assert {request.adapter for request in judge.verdicts} == {"judge"}
    assert judge.requests[-1].adapter is None


async def test_a_judge_without_log_probabilities_is_asked_three_times() -> None:
    judge = Judge(["Right: Yes", "Right: No", "I cannot say."], capabilities=WITHOUT_LOGPROBS)
    async with hybrid_of(judge, "outcome") as hybrid:
        result = await hybrid.run(QUESTION)
    assert len(judge.verdicts) == 3
    assert result.attempts[0].verified["outcome"].raw == 0.5


async def test_a_verdict_that_cannot_be_read_speaks_neither_for_nor_against_a_draft() -> None:
    judge = Judge("Perhaps.", capabilities=WITHOUT_LOGPROBS)
    async with hybrid_of(judge, "outcome") as hybrid:
        result = await hybrid.run(QUESTION)
    assert (result.text, dict(result.attempts[0].verified)) == ("yes", {})


@pytest.mark.parametrize("capabilities", [None, WITHOUT_LOGPROBS], ids=["log-probabilities", "words"])
@pytest.mark.parametrize("said", ["1. not met: there is no invoice, so that", "It is hard to say yes or no.", "Right: Yes/No"])
async def test_a_no_in_the_words_before_a_verdict_is_none(said: str, capabilities: Capabilities | None) -> None:
    async with hybrid_of(Judge(said, capabilities=capabilities), "outcome") as hybrid:
        result = await hybrid.run(QUESTION)
    assert (result.text, dict(result.attempts[0].verified)) == ("yes", {})


@pytest.mark.parametrize("said", ["**Right:** No.", "No invoice is paid, yes.\nRight: No\nYes, I am sure of it.", "I see no proof.\nNo"])
async def test_a_verdict_is_read_where_it_stands(said: str) -> None:
    async with hybrid_of(Judge(said), "outcome") as hybrid:
        result = await hybrid.run(QUESTION)
    assert result.attempts[0].verified["outcome"].raw == pytest.approx(0.1)


async def test_reported_outcomes_correct_a_judge_that_is_too_strict() -> None:
    judge = Judge("Right: No", confidence=0.6)
    async with hybrid_of(judge, "outcome", evidence={"judge": "far"}) as hybrid:
        before = await hybrid.run(QUESTION, task_class="bills")
        accepted = before.attempts[0].model_copy(update={"outcome": "accepted"})
        for _ in range(30):
            hybrid.report(_served_by(before, accepted), score=1.0, task_class="bills")
        after = await hybrid.run(QUESTION, task_class="bills")
        other = await hybrid.run(QUESTION, task_class="letters")
    assert (before.agent, after.agent) == ("far", "near")
    first, second, third = (result.attempts[0].verified["outcome"] for result in (before, after, other))
    assert first.raw == second.raw == third.raw
    assert first.score < 0.5 < third.score < second.score


def _served_by(result: Result, attempt: Attempt) -> Result:
    return result.model_copy(update={"attempts": (attempt,), "agent": attempt.agent})


async def test_a_private_draft_is_not_shown_to_a_far_judge() -> None:
    judge = Judge("Right: No")
    async with hybrid_of(judge, "outcome", "prior_first", sensitivity="private") as hybrid:
        result = await hybrid.run(QUESTION)
    assert (result.text, judge.verdicts, judge.priors) == ("yes", [], [])


@pytest.mark.parametrize("kind", ["outcome", "prior_first"])
async def test_a_far_judge_is_told_nothing_of_a_task_that_only_this_device_may_serve(kind: str) -> None:
    judge = Judge("Right: No")
    policy = {"strategy": "cascade", "sensitivity": "public", "evidence": {"verifiers": [kind], "judge": "far"}}
    near, other = ScriptedAgent(["yes"], name="near", confidence=0.9), ScriptedAgent(["no"], name="other")
    async with Hybrid(near=near, far=judge, agents={"other": other}, policy=policy) as hybrid:
        result = await hybrid.run(QUESTION, mode="only_on_device")
    assert (result.text, judge.requests) == ("yes", [])


async def test_a_prior_is_written_once_a_kind_before_any_work_is_seen() -> None:
    judge = Judge("1. met\n2. not met, turn 1\nRight: No")
    looked_up: list[Reply] = [ToolCall(id="1", name="invoices", arguments={"name": "Mira Falk"}), "paid"]
    async with hybrid_of(judge, "prior_first", answers=looked_up * 2) as hybrid:
        first = await hybrid.run(QUESTION, tools=[invoices])
        await hybrid.run("Is the invoice of Ruth Berg paid?", tools=[invoices])
    assert len(judge.priors) == 1
    assert "Mira Falk: paid" not in judge.priors[0].messages[-1].text
    assert "invoices: List invoices." in judge.priors[0].messages[-1].text
    assert "not met, turn 1" in first.attempts[0].reason
    shown = [request.messages[-1].text for request in judge.verdicts]
    assert "1. The invoice of Mira Falk was looked up." in shown[0]
    assert "1. The invoice of Ruth Berg was looked up." in shown[1]


async def test_no_prior_is_kept_of_a_task_that_asks_for_no_store() -> None:
    judge = Judge("Right: Yes")
    async with hybrid_of(judge, "prior_first") as hybrid:
        for cache in ("no-store", "use", "no-store", "use"):
            await hybrid.run(QUESTION, cache=cache)
    assert len(judge.priors) == 3


async def test_a_rubric_asks_no_judge_before_a_report_has_named_a_fault() -> None:
    judge = Judge("Right: No")
    async with hybrid_of(judge, "rubric") as hybrid:
        first = await hybrid.run(QUESTION, task_class="bills")
        assert (first.text, judge.verdicts) == ("yes", [])
        hybrid.report(first, score=0.0, task_class="bills", because="It did not look the invoice up.")
        second = await hybrid.run(QUESTION, task_class="bills")
        third = await hybrid.run(QUESTION, task_class="letters")
    assert (second.agent, third.agent) == ("far", "near")
    assert "It did not look the invoice up." in judge.verdicts[0].messages[-1].text


async def test_a_rubric_counts_faults_in_like_words_together_and_shows_the_usual_ones_first() -> None:
    judge = Judge("Right: Yes")
    async with hybrid_of(judge, "rubric") as hybrid:
        done = await hybrid.run(QUESTION, task_class="bills")
        for because in ("It is rude.", "the invoice was not looked up", "It is too long.", "The invoice was not looked up."):
            hybrid.report(done, score=0.0, task_class="bills", because=because)
        await hybrid.run(QUESTION, task_class="bills")
    points = [line for line in judge.verdicts[0].messages[-1].text.splitlines() if "earlier fault" in line]
    assert points[0] == "1. It is free of an earlier fault: the invoice was not looked up"
    assert len(points) == 3


async def test_faults_of_private_answers_are_not_told_to_a_far_judge_or_written_down(tmp_path: Path) -> None:
    judge = Judge("Right: No")
    log: dict[str, Any] = {"router": {"log": tmp_path / "log.jsonl"}}
    async with hybrid_of(judge, "rubric", **log) as hybrid:
        private = await hybrid.run(QUESTION, sensitivity="private", task_class="bills")
        hybrid.report(private, score=0.0, task_class="bills", because="It names Mira Falk.")
        await hybrid.run(QUESTION, task_class="bills")
    assert judge.verdicts == []
    assert "names Mira Falk" not in (tmp_path / "log.jsonl").read_text()


async def test_faults_and_verdicts_of_a_log_are_known_to_the_next_process(tmp_path: Path) -> None:
    log: dict[str, Any] = {"router": {"log": tmp_path / "log.jsonl"}}
    async with hybrid_of(Judge("Right: Yes"), "outcome", **log) as hybrid:
        done = await hybrid.run(QUESTION, task_class="bills")
        hybrid.report(done, score=0.0, task_class="bills", because="It is a guess.")
    judge = Judge("Right: Yes")
    async with hybrid_of(judge, "rubric", "outcome", **log) as hybrid:
        again = await hybrid.run(QUESTION, task_class="bills")
    assert "It is a guess." in judge.verdicts[0].messages[-1].text
    verdict = again.attempts[0].verified["outcome"]
    assert verdict.score < verdict.raw
    (trace,) = (each for each in read_traces(tmp_path / "log.jsonl") if each.outcomes["near"].score == 0)
    assert trace.outcomes["near"].verified["outcome"].because == ""


async def test_a_fault_of_a_private_answer_is_told_to_private_tasks_of_its_user_alone() -> None:
    judge = ScriptedAgent(["Right: Yes"] * 9, name="phi", confidence=0.9)
    policy = {"strategy": "cascade", "evidence": {"verifiers": ["rubric"], "judge": "phi", "before_acts": False}}
    far, near = ScriptedAgent(["later"] * 9, name="far", side=Side.FAR), ScriptedAgent(["yes"] * 9, name="near", confidence=0.9)
    async with Hybrid(near=near, far=far, agents={"phi": judge}, policy=policy) as hybrid:
        done = await hybrid.run(QUESTION, sensitivity="private", user="ann")
        hybrid.report(done, score=0.0, because="It names Mira Falk.")
        for user, sensitivity in (("ann", "public"), ("bo", "public"), ("bo", "private")):
            await hybrid.run(QUESTION, sensitivity=sensitivity, user=user)
        assert not [request for request in judge.requests if "Falk." in request.messages[-1].text]
        await hybrid.run(QUESTION, sensitivity="private", user="ann")
    assert "fault: It names Mira Falk." in judge.requests[-1].messages[-1].text


def test_a_private_fault_takes_no_place_from_those_that_other_users_may_be_told() -> None:
    faults = Faults()
    faults.add(ReportedFault("bills", "It is a guess."))
    for number in range(60):
        faults.add(ReportedFault("bills/paid", f"It names patient {number}.", Tier.USER, "ann"))
    assert faults.of("bills/paid", user="bo", reach=Tier.SHARED) == ["It is a guess."]
    faults.add(ReportedFault("bills/paid", "It is rude."))
    assert faults.of("bills/paid", user="bo", reach=Tier.USER) == ["It is rude."]


def test_faults_that_were_named_once_make_room_for_later_ones() -> None:
    faults = Faults()
    for number in range(60):
        faults.add(ReportedFault("bills", f"Item {number} is missing."))
    for user in ("ann", "bo"):
        faults.add(ReportedFault("bills", "It is a guess.", user=user))
    assert faults.of("bills", user="bo", reach=Tier.SHARED)[0] == "It is a guess."


async def test_a_fault_that_looks_private_does_not_keep_later_tasks_on_the_device() -> None:
    judge = Judge("Right: No")
    async with hybrid_of(judge, "rubric", "outcome") as hybrid:
        done = await hybrid.run(QUESTION)
        hybrid.report(done, score=0.0, because="It was to name mira.falk@example.org.")
        result = await hybrid.run(QUESTION)
    assert (result.text, result.agent) == ("later", "far")
    assert not [request for request in judge.verdicts if "mira.falk" in request.messages[-1].text]


async def test_a_fault_is_told_in_one_line_of_whole_characters() -> None:
    judge = Judge("Right: Yes")
    async with hybrid_of(judge, "rubric") as hybrid:
        done = await hybrid.run(QUESTION)
        hybrid.report(done, score=0.0, because="It is\n\nWork:\na guess\ud800.")
        for unusable in ("x" * 501, 5, None):
            with pytest.raises(InvalidRequest, match="a fault is a text"):
                hybrid.report(done, score=0.0, because=unusable)  # type: ignore[arg-type]
        await hybrid.run(QUESTION)
    assert "fault: It is Work: a guess?." in judge.verdicts[0].messages[-1].text


def test_a_report_names_no_fault_of_a_right_answer() -> None:
    with hybrid_of(Judge("Right: Yes")) as hybrid:
        done = hybrid.run_sync(QUESTION)
        with pytest.raises(InvalidRequest, match="no fault"):
            hybrid.report(done, score=1.0, because="none")


async def test_verdicts_are_looks_at_their_price_in_traces(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    async with hybrid_of(Judge(["Right: Yes", "Right: No"]), "outcome", router={"log": log}) as hybrid:
        for _ in range(2):
            hybrid.report(await hybrid.run(QUESTION), score=1.0)
    traces = read_traces(log)
    scored = [each.model_copy(update={"outcomes": {**each.outcomes, "far": each.outcomes["near"].model_copy()}}) for each in traces]
    told = [each for each in scored if each.outcomes["near"].score is not None]
    examples = draft_examples_of(told, draft="near", far="far", opinions={})
    assert "outcome" in {look.name for look in examples.looks}
    assert examples.findings[0]["outcome"].measures["log odds"] > 0


async def test_a_judge_of_a_single_world_reads_no_points() -> None:
    judge = Judge("Right: No")
    judge._card = judge.card.model_copy(update={"world": "search"})
    async with hybrid_of(judge, "rubric") as hybrid:
        with pytest.raises(ConfigError, match="reads no points"):
            await hybrid.run(QUESTION)


def test_an_unknown_judge_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match="no agent 'other'"):
        hybrid_of(Judge("Right: No"), "outcome", evidence={"judge": "other"})


async def test_an_answer_is_verified_against_its_schema_and_what_tools_found() -> None:
    schema = {"type": "object", "properties": {"paid": {"type": "boolean"}}, "required": ["paid"]}
    typed = Task(messages=(Message.user(QUESTION),), output_schema=schema)
    plain = Task(messages=(Message.user(QUESTION),))
    nothing = CandidateEvidence([Message.user(QUESTION)], has_tools=True)
    fits, breaks = [await SchemaVerifier().verify(typed, [text], nothing) for text in ('{"paid": true}', "yes")]
    assert (fits.score, breaks.score) == (1.0, 0.0)
    assert (await SchemaVerifier().verify(plain, ["yes"], nothing)).score == 0.5
    assert (await GroundedVerifier().verify(plain, ["Orbix Labs"], nothing)).score == 0.0
    assert (await GroundedVerifier().verify(typed, ["yes"], nothing)).score == 0.5


@pytest.mark.parametrize("strategy", ["pevr", "eva"])
async def test_a_supervisor_with_a_prior_checks_by_what_it_wrote_before_the_work(strategy: str) -> None:
    shown: list[StepRequest] = []

    def supervise(request: StepRequest) -> Reply:
        if system_of(request) == PRIOR:
            return "1. The invoice of Mira Falk was looked up."
        shown.append(request)
        return "1. invoices(...)\n2. answer" if system_of(request) == PLAN else "CONTINUE"

    looked_up: list[Reply] = [ToolCall(id="1", name="invoices", arguments={"name": "Mira Falk"}), "paid"]
    policy = {"strategy": strategy, "sensitivity": "public", "supervision": {"interval": 1, "prior": True}}
    far = ScriptedAgent(supervise, name="far", side=Side.FAR)
    async with Hybrid(near=ScriptedAgent(looked_up * 2, name="near"), far=far, tools=[invoices], policy=policy) as hybrid:
        first = await hybrid.run(QUESTION)
        await hybrid.run(QUESTION)
    checks = [request.messages[-1].text for request in shown if system_of(request) != PLAN]
    assert len(checks) == 2
    assert all("Must be true of a right outcome:\n1. The invoice of Mira Falk was looked up." in text for text in checks)
    assert [call.role for call in first.calls].count("prior") == 1
    assert len(far.requests) - len(shown) == 1


async def test_a_supervisor_of_a_single_world_takes_no_prior() -> None:
    judge = Judge("Right: No")
    judge._card = judge.card.model_copy(update={"world": "search"})
    policy = {"strategy": "eva", "sensitivity": "public", "supervision": {"triggers": ["answer"], "prior": True}}
    async with Hybrid(near=ScriptedAgent(["yes"], name="near"), far=judge, policy=policy) as hybrid:
        with pytest.raises(ConfigError, match="reads no points"):
            await hybrid.run(QUESTION)
