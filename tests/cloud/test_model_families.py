"""Which parameters a model gets follows from its name and its configuration, not from the address that it is at."""

from typing import Any

import pytest
from http_server import Exchange, http_server
from streams import TEXTS, WEATHER, agent_at, asking, responses_stream

from nearfar.cloud.anthropic import AnthropicDialect
from nearfar.cloud.config import ProviderConfig, build_provider
from nearfar.cloud.dialect import Dialect, bare_name, openai_traits
from nearfar.cloud.gemini import GeminiDialect
from nearfar.cloud.openai import OpenAIDialect
from nearfar.cloud.responses import ResponsesDialect
from nearfar.protocols import Effort, FinishReason, Message, StepRequest, ToolCall, ToolChoice, ToolResult, complete

pytestmark = pytest.mark.anyio


def body(dialect: Dialect, request: StepRequest, model: str, *, limit: int | None = 100) -> dict[str, Any]:
    return dialect.body(request, model, max_output_tokens=limit)


@pytest.mark.parametrize("model", ["gpt-5.5", "azure/gpt-5.5", "openrouter/openai/o4-mini", "ft:gpt-5-mini:acme", "GPT-5-nano"])
@pytest.mark.parametrize("hosted", [True, False])
def test_a_reasoning_model_gets_no_parameter_that_it_refuses_wherever_it_is(model: str, hosted: bool) -> None:
    written = body(OpenAIDialect(hosted=hosted), asking(temperature=0.0, stop=("END",)), model)
    assert written["max_completion_tokens"] == 100
    assert not written.keys() & {"temperature", "stop", "max_tokens"}


def test_a_deployment_whose_name_says_nothing_is_what_its_configuration_says() -> None:
    request = asking(temperature=0.5, stop=("END",), effort="high")
    told = body(OpenAIDialect(hosted=False, reasoning=True), request, "prod")
    assert (told["max_completion_tokens"], told["reasoning_effort"]) == (100, "high")
    assert not told.keys() & {"temperature", "stop", "max_tokens"}
    untold = body(OpenAIDialect(hosted=False), request, "prod")
    assert (untold["max_tokens"], untold["temperature"], untold["stop"]) == (100, 0.5, ["END"])
    assert "reasoning_effort" not in untold
    plain = body(OpenAIDialect(reasoning=False), request, "gpt-5.5-clone")
    assert (plain["temperature"], plain["stop"]) == (0.5, ["END"])


@pytest.mark.parametrize("model", ["qwen3", "meta-llama/llama-3.3-70b-instruct", "gpt-oss:20b"])
def test_models_of_compatible_servers_keep_their_plain_parameters(model: str) -> None:
    written = body(OpenAIDialect(hosted=False), asking(temperature=0.0, stop=("END",)), model)
    assert (written["max_tokens"], written["temperature"], written["stop"]) == (100, 0.0, ["END"])


@pytest.mark.parametrize("model", ["anthropic/claude-opus-4.7", "claude-sonnet-5-5"])
def test_claude_behind_a_proxy_keeps_its_own_rules(model: str) -> None:
    written = body(OpenAIDialect(hosted=False), asking(temperature=0.0, stop=("END",), effort="minimal"), model)
    assert (written["max_tokens"], written["stop"], written["reasoning_effort"]) == (100, ["END"], "low")
    assert "temperature" not in written


@pytest.mark.parametrize(
    ("model", "effort", "sent"),
    [
        ("gpt-6.1-sol", Effort.MAX, "max"),
        ("gpt-5.5", Effort.MAX, "xhigh"),
        ("gpt-5.5", Effort.MINIMAL, "none"),
        ("gpt-5.1", Effort.XHIGH, "high"),
        ("gpt-5-mini", Effort.NONE, "minimal"),
        ("gpt-5-pro", Effort.LOW, "high"),
        ("o3", Effort.MINIMAL, "low"),
        ("gpt-5.2-chat-latest", Effort.HIGH, None),
        ("gpt-4o", Effort.HIGH, None),
    ],
)
def test_openai_gets_the_nearest_effort_that_its_model_knows(model: str, effort: Effort, sent: str | None) -> None:
    assert body(OpenAIDialect(), asking(effort=effort), model).get("reasoning_effort") == sent
    assert body(ResponsesDialect(), asking(effort=effort), model).get("reasoning", {}).get("effort") == sent


def test_chat_completions_tell_a_model_not_to_think_where_it_refuses_tools_otherwise() -> None:
    request = asking(effort="high", tools=(WEATHER,))
    assert body(OpenAIDialect(), request, "gpt-5.5")["reasoning_effort"] == "none"
    assert body(OpenAIDialect(hosted=False), asking(tools=(WEATHER,)), "azure/gpt-6-luna")["reasoning_effort"] == "none"
    assert body(ResponsesDialect(), request, "gpt-5.5")["reasoning"] == {"effort": "high"}
    assert body(OpenAIDialect(), request, "gpt-5.1")["reasoning_effort"] == "high"


def test_a_servers_own_model_gets_the_effort_that_its_configuration_names() -> None:
    dialect = OpenAIDialect(hosted=False, effort=Effort.MINIMAL)
    assert body(dialect, asking(), "qwen3")["reasoning_effort"] == "minimal"
    assert body(dialect, asking(effort="max"), "qwen3")["reasoning_effort"] == "max"


@pytest.mark.parametrize(
    ("model", "effort", "thinking", "sent"),
    [
        ("claude-opus-4-7", Effort.XHIGH, {"type": "adaptive"}, "xhigh"),
        ("claude-sonnet-4-6", Effort.XHIGH, {"type": "adaptive"}, "high"),
        ("claude-opus-4-7", Effort.NONE, None, None),
        ("claude-opus-4-5-20251101", Effort.MAX, None, "high"),
        ("claude-opus-5", Effort.NONE, {"type": "disabled"}, None),
        ("claude-sonnet-5-5", Effort.NONE, None, "low"),
        ("claude-fable-5", Effort.MINIMAL, None, "low"),
        ("anthropic/claude-opus-5-5", Effort.MAX, None, "max"),
        ("claude-sonnet-4-5", Effort.HIGH, None, None),
        ("claude-haiku-4-5", Effort.HIGH, None, None),
    ],
)
def test_claude_gets_an_effort_in_its_models_own_terms(
    model: str, effort: Effort, thinking: dict[str, str] | None, sent: str | None
) -> None:
    written = body(AnthropicDialect(), asking(effort=effort), model)
    assert (written.get("thinking"), written.get("output_config", {}).get("effort")) == (thinking, sent)


def test_claude_is_not_told_to_think_where_it_must_call_a_tool_or_has_a_temperature() -> None:
    forced = asking(effort="high", tools=(WEATHER,), tool_choice=ToolChoice.REQUIRED)
    assert "thinking" not in body(AnthropicDialect(), forced, "claude-opus-4-6")
    assert "temperature" not in body(AnthropicDialect(), asking(effort="high", temperature=0.0), "claude-opus-4-6")


@pytest.mark.parametrize(
    ("model", "effort", "sent"),
    [
        ("gemini-3.5-flash", Effort.NONE, {"thinkingLevel": "MINIMAL"}),
        ("gemini-3.7-flash", Effort.MINIMAL, {"thinkingLevel": "LOW"}),
        ("gemini-3-pro-preview", Effort.MEDIUM, {"thinkingLevel": "LOW"}),
        ("models/gemini-3.1-pro-preview", Effort.MAX, {"thinkingLevel": "HIGH"}),
        ("gemini-2.5-flash", Effort.NONE, {"thinkingBudget": 0}),
        ("gemini-2.5-pro", Effort.NONE, {"thinkingBudget": 128}),
        ("gemini-2.5-pro", Effort.MAX, {"thinkingBudget": 32768}),
        ("gemini-2.0-flash", Effort.HIGH, None),
        ("gemma-3-27b-it", Effort.HIGH, None),
    ],
)
def test_gemini_gets_a_level_or_a_budget(model: str, effort: Effort, sent: dict[str, object] | None) -> None:
    assert body(GeminiDialect(), asking(effort=effort), model)["generationConfig"].get("thinkingConfig") == sent


@pytest.mark.parametrize(
    ("model", "most", "sent"), [("gemini-2.5-flash", 300, 300), ("gemini-2.5-pro", 64, 128), ("gemini-2.5-pro", 99999, 32768)]
)
def test_gemini_thinks_for_as_many_tokens_as_it_may(model: str, most: int, sent: int) -> None:
    thinking = body(GeminiDialect(), asking(effort="low", max_reasoning_tokens=most), model)["generationConfig"]["thinkingConfig"]
    assert thinking == {"thinkingBudget": sent}
    config = ProviderConfig(provider="gemini", model=model)
    assert build_provider(config).card.capabilities.reasoning_limit
    assert not build_provider(ProviderConfig(provider="gemini", model="gemini-3-pro")).card.capabilities.reasoning_limit


def test_a_request_overrides_the_effort_of_the_configuration() -> None:
    assert body(ResponsesDialect(effort=Effort.LOW), asking(), "gpt-5.5")["reasoning"] == {"effort": "low"}
    assert body(ResponsesDialect(effort=Effort.LOW), asking(effort="high"), "gpt-5.5")["reasoning"] == {"effort": "high"}
    assert body(AnthropicDialect(effort=Effort.LOW), asking(), "claude-opus-5")["output_config"] == {"effort": "low"}


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"model": "gpt-5.5"}, "/responses"),
        ({"model": "o4-mini"}, "/responses"),
        ({"model": "gpt-next"}, "/responses"),
        ({"model": "gpt-4o"}, "/chat/completions"),
        ({"model": "gpt-5.5", "api": "chat"}, "/chat/completions"),
        ({"model": "gpt-5.5", "base_url": "http://127.0.0.1:4000/v1"}, "/chat/completions"),
        ({"model": "gpt-5.5", "base_url": "http://127.0.0.1:4000/v1", "api": "responses"}, "/responses"),
        ({"model": "gpt-4.1", "api": "responses"}, "/responses"),
        ({"model": "gpt-5.5", "logprobs": True}, "/chat/completions"),
    ],
)
def test_models_after_gpt_4_are_asked_over_responses_at_openai_itself(fields: dict[str, Any], path: str) -> None:
    config = ProviderConfig(provider="openai", **fields)
    assert config.speaks_responses is (path == "/responses")
    assert ("responses" in build_provider(config).card.description) is (path == "/responses")


@pytest.mark.parametrize(
    "fields",
    [
        {"provider": "anthropic", "api": "responses"},
        {"provider": "gemini", "reasoning": True},
        {"provider": "openai", "api": "responses", "logprobs": True},
        {"provider": "openai", "reasoning": False, "effort": "high"},
        {"provider": "openai", "effort": "enormous"},
    ],
)
def test_settings_that_contradict_each_other_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="api|effort"):
        ProviderConfig(model="any", **fields)


def test_responses_store_nothing_and_carry_reasoning_only_where_the_model_reasons() -> None:
    written = body(ResponsesDialect(), asking(tools=(WEATHER,), temperature=0.3), "gpt-5.5")
    assert (written["store"], written["include"], written["max_output_tokens"]) == (False, ["reasoning.encrypted_content"], 100)
    assert written["input"] == [{"type": "message", "role": "user", "content": "hello"}]
    assert written["tools"][0]["strict"] is False
    assert "temperature" not in written
    plain = body(ResponsesDialect(), asking(temperature=0.3), "gpt-4.1")
    assert plain["temperature"] == 0.3
    assert "include" not in plain


def test_responses_take_an_output_schema() -> None:
    schema = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
    form = body(ResponsesDialect(), asking(output_schema=schema), "gpt-5.5")["text"]["format"]
    assert form == {"type": "json_schema", "name": "output", "schema": schema, "strict": True}


def test_ids_that_are_too_long_for_responses_are_shortened_alike() -> None:
    call = ToolCall(id="x" * 90, name="weather", arguments={"city": "Paris"})
    messages = (
        Message.user("?"),
        Message.assistant(tool_calls=(call,)),
        Message.tool(ToolResult(call_id=call.id, name="weather", content="")),
    )
    _, called, result = body(ResponsesDialect(), asking(messages=messages), "gpt-5.5")["input"]
    assert called["call_id"] == result["call_id"]
    assert len(called["call_id"]) <= 64


@pytest.mark.parametrize("pieces", [["one ST", "OP two"], ["one STOP two"], ["one ", "S", "T", "O", "P", " two"]])
async def test_a_stop_sequence_that_the_api_does_not_take_ends_the_text_here(pieces: list[str]) -> None:
    async def answer(exchange: Exchange) -> None:
        await exchange.stream([TEXTS["responses"](*pieces)])

    async with http_server(answer) as server:
        agent = agent_at(server.base_url, "responses")
        reply = await complete(agent, asking(stop=("STOP", "never")))
        await agent.aclose()
    assert (reply.text, reply.finished.reason, reply.finished.state) == ("one ", FinishReason.STOP, None)
    assert reply.finished.stop == "STOP"


@pytest.mark.parametrize("named", ["STOP", "never asked for"])
async def test_a_stop_sequence_that_the_provider_names_is_told_if_it_was_asked_for(named: str) -> None:
    ended = TEXTS["anthropic"]("one ", finish="stop_sequence").replace('"stop_sequence": null', f'"stop_sequence": "{named}"')

    async def answer(exchange: Exchange) -> None:
        await exchange.stream([ended])

    async with http_server(answer) as server:
        agent = agent_at(server.base_url, "anthropic")
        reply = await complete(agent, asking(stop=("STOP", "never")))
        await agent.aclose()
    assert named in ended
    assert reply.finished.stop == (named if named == "STOP" else None)


async def test_what_only_begins_like_a_stop_sequence_is_said() -> None:
    async def answer(exchange: Exchange) -> None:
        await exchange.stream([TEXTS["responses"]("one ST", "ART two ST")])

    async with http_server(answer) as server:
        agent = agent_at(server.base_url, "responses")
        assert (await complete(agent, asking(stop=("STOP",)))).text == "one START two ST"
        await agent.aclose()


async def test_reasoning_tokens_are_counted() -> None:
    usage = {"input_tokens": 9, "output_tokens": 8, "output_tokens_details": {"reasoning_tokens": 7}}

    async def answer(exchange: Exchange) -> None:
        await exchange.stream([responses_stream(usage=usage)])

    async with http_server(answer) as server:
        agent = agent_at(server.base_url, "responses")
        assert (await complete(agent, asking())).finished.usage.reasoning_tokens == 7
        await agent.aclose()


def test_a_model_is_known_by_its_name_alone() -> None:
    ways = ("openrouter/openai/gpt-5.5", "ft:gpt-5.5", "ft:gpt-5.5:our-team:tone:B1x", "openai/gpt-5.5:nitro", "GPT-5.5")
    assert {bare_name(way) for way in ways} == {"gpt-5.5"}
    assert openai_traits("something-new", hosted=True, reasoning=None).stops is False


@pytest.mark.parametrize(
    "name",
    [
        "anthropic/claude-opus-4.7",
        "anthropic/claude-opus-4.7:beta",
        "bedrock/us.anthropic.claude-opus-4-7-v1:0",
        "anthropic.claude-opus-4-7-v1",
        "vertex_ai/claude-opus-4-7@default",
    ],
)
@pytest.mark.parametrize("dialect", [AnthropicDialect(), OpenAIDialect(hosted=False)])
def test_claude_keeps_its_own_rules_under_the_names_of_other_houses(dialect: Dialect, name: str) -> None:
    sent = body(dialect, asking(temperature=0.7, effort=Effort.HIGH), name)
    assert "temperature" not in sent
    assert sent.get("output_config", {}).get("effort", sent.get("reasoning_effort")) == "high"


@pytest.mark.parametrize(
    ("name", "effort"), [("openai/o3:online", "low"), ("openai/gpt-5:floor", "minimal"), ("ft:gpt-5:team::id", "minimal")]
)
def test_a_variant_or_a_tuned_model_takes_what_its_model_takes(name: str, effort: str) -> None:
    sent = body(OpenAIDialect(hosted=False), asking(temperature=0.7, stop=("X",), effort=Effort.MINIMAL), name, limit=50)
    assert sent["reasoning_effort"] == effort
    assert "max_completion_tokens" in sent
    assert not {"temperature", "stop", "max_tokens"} & sent.keys()


def test_an_output_limit_that_responses_refuse_is_raised_to_the_least_one() -> None:
    limits = [body(ResponsesDialect(), asking(), "gpt-5.5", limit=limit)["max_output_tokens"] for limit in (1, 15, 16, 17)]
    assert limits == [16, 16, 16, 17]


def test_a_chat_model_is_not_asked_for_thoughts() -> None:
    assert "include" not in body(ResponsesDialect(), asking(effort=Effort.HIGH), "gpt-5-chat-latest")


async def test_a_blank_stop_sequence_that_anthropic_refuses_ends_the_text_here() -> None:
    async def answer(exchange: Exchange) -> None:
        await exchange.stream([TEXTS["anthropic"]("one\n", "\ntwo")])

    async with http_server(answer) as server:
        agent = agent_at(server.base_url, "anthropic")
        reply = await complete(agent, asking(stop=("\n\n", "END")))
        await agent.aclose()
        assert server.exchanges[0].body["stop_sequences"] == ["END"]
    assert (reply.text, reply.finished.reason) == ("one", FinishReason.STOP)


SAMPLERS: dict[str, Any] = {"top_p": 0.9, "top_k": 40, "min_p": 0.05, "presence_penalty": 0.5, "frequency_penalty": 0.25}


@pytest.mark.parametrize(
    ("dialect", "model", "sent"),
    [
        (OpenAIDialect(), "gpt-4.1", {"top_p", "presence_penalty", "frequency_penalty"}),
        (OpenAIDialect(), "gpt-5.5", set()),
        (OpenAIDialect(hosted=False), "qwen3-4b", {"top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty"}),
        (ResponsesDialect(), "gpt-4.1", {"top_p"}),
        (ResponsesDialect(), "gpt-5.5", set()),
        (AnthropicDialect(), "claude-sonnet-4-5", {"top_p", "top_k"}),
        (AnthropicDialect(), "claude-opus-4-8", set()),
    ],
)
def test_samplers_go_to_the_models_that_take_them(dialect: Dialect, model: str, sent: set[str]) -> None:
    written = body(dialect, asking(**SAMPLERS), model)
    assert written.keys() & SAMPLERS.keys() == sent
    assert all(written[name] == SAMPLERS[name] for name in sent)


def test_gemini_gets_samplers_in_its_own_words_and_penalties_only_where_it_takes_them() -> None:
    old, new = (body(GeminiDialect(), asking(**SAMPLERS), name)["generationConfig"] for name in ("gemini-2.0-flash", "gemini-3-pro"))
    assert (new["topP"], new["topK"]) == (0.9, 40)
    assert (old["presencePenalty"], old["frequencyPenalty"]) == (0.5, 0.25)
    assert not new.keys() & {"presencePenalty", "frequencyPenalty"}


def test_claude_gets_no_top_p_together_with_a_temperature() -> None:
    assert "top_p" not in body(AnthropicDialect(), asking(temperature=0.5, top_p=0.9), "claude-sonnet-4-5")
