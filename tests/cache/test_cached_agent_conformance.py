"""A cached agent keeps the contract of an agent over every transport, with an empty cache and with one that knows all answers."""

import itertools
from pathlib import Path
from typing import Final

import pytest
from anyio.lowlevel import checkpoint

from nearfar.orchestrator.cache import AnswerCache
from nearfar.orchestrator.cache.agent import CachedAgent
from nearfar.orchestrator.task.stores import CacheConfig
from nearfar.protocols import Agent, Capabilities, Limits, ScriptedAgent, Side, StepRequest, ToolCall, ToolSpec
from nearfar.protocols.fakes import Reply
from nearfar.protocols.testing import TRANSPORTS, Transport, in_process
from nearfar.protocols.testing.agent_conformance import CHECKS, Check, SchemaUse, Subject, ToolUse, UnicodeUse, run_check, usage_is_counted

CAPITAL: Final = ToolSpec(
    name="capital",
    parameters={"type": "object", "properties": {"country": {"type": "string"}}, "required": ["country"]},
)
PERSON: Final = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
EMOJI: Final = "\N{FAMILY} na\N{LATIN SMALL LETTER I WITH DIAERESIS}ve"


def answer(request: StepRequest) -> Reply:
    last = request.messages[-1]
    if last.tool_result is not None:
        return f"It is {last.tool_result.content}."
    replies: dict[str, Reply] = {
        "capital": ToolCall(id="call-1", name="capital", arguments={"country": "France"}),
        "person": ['{"age', '": 3', "}"],
        "unicode": list(EMOJI),
        "long": [f"word{number} " for number in range(200)],
    }
    return replies.get(last.text, ["Hello", ", ", "world"])


class Family:
    """Makes cached agents over one file, and knows the agents behind them."""

    def __init__(self, path: Path, **options: object) -> None:
        self._settings = CacheConfig(path=path, semantic=False)
        self._options = options
        self._inner: dict[int, ScriptedAgent] = {}

    async def create(self) -> Agent:
        claimed = Capabilities(tools=True, json_schema=True, seed=True, cancellation=True)
        defaults: dict[str, object] = {"capabilities": claimed, "limits": Limits(context_tokens=500, concurrency=4), "confidence": 0.9}
        inner = ScriptedAgent(answer, pace=checkpoint, **{**defaults, **self._options})  # type: ignore[arg-type]  # options are free here
        cached = CachedAgent(inner, AnswerCache(self._settings))
        self._inner[id(cached)] = inner
        return cached

    def subject(self, **uses: object) -> Subject:
        fields: dict[str, object] = {
            "create": self.create,
            "prompt": "short",
            "long_prompt": "long",
            "live_steps": lambda agent: self._inner[id(agent)].live_steps,
            "tokens_decoded": lambda agent: self._inner[id(agent)].tokens_decoded,
            **uses,
        }
        return Subject(**fields)  # type: ignore[arg-type]  # uses are free here


USES: Final = {
    "tool_use": ToolUse(prompt="capital", tools=(CAPITAL,), result="Paris"),
    "schema_use": SchemaUse(prompt="person", schema=PERSON),
    "unicode_use": UnicodeUse(prompt="unicode", expected=EMOJI),
}


@pytest.mark.anyio
@pytest.mark.parametrize("transport", TRANSPORTS, ids=lambda transport: transport.__name__)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_a_cached_agent_keeps_the_contract(check: Check, transport: Transport, tmp_path: Path) -> None:
    await run_check(check, Family(tmp_path / "answers.db").subject(**USES), transport)


@pytest.mark.anyio
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_a_cached_far_agent_that_claims_little_keeps_the_contract(check: Check, tmp_path: Path) -> None:
    family = Family(tmp_path / "answers.db", side=Side.FAR, capabilities=Capabilities(), limits=Limits(concurrency=1), confidence=None)
    await run_check(check, family.subject(), in_process)


@pytest.mark.anyio
@pytest.mark.parametrize("check", [check for check in CHECKS if check is not usage_is_counted], ids=lambda check: check.__name__)
async def test_replayed_answers_keep_the_contract(check: Check, tmp_path: Path) -> None:
    """Run twice over one file. What a replayed answer has used is nothing, so that check is left out."""
    family = Family(tmp_path / "answers.db")
    for _ in itertools.repeat(None, 2):
        await run_check(check, family.subject(**USES), in_process)
