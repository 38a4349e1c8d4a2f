"""Everything that can go wrong between a step and its provider, over real connections."""

import logging
import socket
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import anyio
import anyio.lowlevel
import pytest
from http_server import Exchange, Server, http_server, sse
from streams import DIALECTS, KEY, TEXTS, WEATHER, agent_at, asking, openai_call, openai_chunk

from nearfar.cloud.failures import RetryPolicy, parse_retry_after
from nearfar.cloud.openai import OpenAIDialect
from nearfar.cloud.provider import ProviderAgent
from nearfar.protocols import (
    ConfigError,
    ContentFiltered,
    ContextOverflow,
    DeadlineExceeded,
    InvalidOutput,
    InvalidRequest,
    Limits,
    NearfarError,
    NoSuchModel,
    PrivacyViolation,
    ProviderAuthError,
    QuotaExceeded,
    RateLimited,
    RequestRefused,
    Stalled,
    StepLost,
    StepRequest,
    TextDelta,
    Unavailable,
    Unsupported,
    complete,
    stream,
)
from nearfar.protocols.secrets import GivenKey, quote
from nearfar.protocols.steps import Sensitivity

pytestmark = pytest.mark.anyio


def openai(message: str, **fields: object) -> dict[str, object]:
    return {"error": {"message": message, "param": None, **fields}}


def anthropic(kind: str, message: str) -> dict[str, object]:
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"}


def gemini(code: int, status: str, message: str, *details: dict[str, object]) -> dict[str, object]:
    return {"error": {"code": code, "status": status, "message": message, "details": list(details)}}


RESPONSES: list[tuple[str, int, object, type[NearfarError]]] = [
    ("openai", 400, openai("Unknown parameter: 'x'.", type="invalid_request_error"), RequestRefused),
    ("openai", 400, openai("too many tokens", code="context_length_exceeded"), ContextOverflow),
    ("openai", 400, {"object": "error", "message": "This model's maximum context length is 8192 tokens.", "code": 400}, ContextOverflow),
    ("openai", 400, openai("the request exceeds the available context size", type="exceed_context_size_error", code=400), ContextOverflow),
    ("openai", 500, openai("Requested tokens (900) exceed context window of 512"), ContextOverflow),
    ("openai", 400, openai("The response was filtered", code="content_filter"), ContentFiltered),
    ("openai", 401, openai("Incorrect API key provided", code="invalid_api_key"), ProviderAuthError),
    ("openai", 402, openai("Insufficient credits", code=402), QuotaExceeded),
    ("openai", 403, openai("Country not supported"), ProviderAuthError),
    ("openai", 404, openai("The model `m` does not exist", code="model_not_found"), NoSuchModel),
    ("openai", 422, {"detail": [{"msg": "field required", "loc": ["body", "x"]}]}, RequestRefused),
    ("openai", 429, openai("Rate limit reached", code="rate_limit_exceeded"), RateLimited),
    ("openai", 429, openai("You exceeded your current quota", code="insufficient_quota"), QuotaExceeded),
    ("openai", 500, openai("The server had an error"), Unavailable),
    ("openai", 503, "upstream connect error", Unavailable),
    ("openai", 502, "", Unavailable),
    ("openai", 400, {"error": "model not loaded"}, RequestRefused),
    ("openai", 400, [1, 2], RequestRefused),
    ("anthropic", 400, anthropic("invalid_request_error", "prompt is too long: 210000 tokens > 200000 maximum"), ContextOverflow),
    ("anthropic", 400, anthropic("invalid_request_error", "Your credit balance is too low"), QuotaExceeded),
    ("anthropic", 400, anthropic("invalid_request_error", "max_tokens: Field required"), RequestRefused),
    ("anthropic", 401, anthropic("authentication_error", "invalid x-api-key"), ProviderAuthError),
    ("anthropic", 404, anthropic("not_found_error", "model: claude-0"), NoSuchModel),
    ("anthropic", 413, anthropic("request_too_large", "Request exceeds the maximum size"), ContextOverflow),
    ("anthropic", 429, anthropic("rate_limit_error", "This would exceed your rate limit"), RateLimited),
    ("anthropic", 529, anthropic("overloaded_error", "Overloaded"), Unavailable),
    ("gemini", 400, gemini(400, "INVALID_ARGUMENT", "Unknown name"), RequestRefused),
    (
        "gemini",
        400,
        gemini(400, "INVALID_ARGUMENT", "The input token count (9) exceeds the maximum number of tokens allowed (8)."),
        ContextOverflow,
    ),
    ("gemini", 400, gemini(400, "INVALID_ARGUMENT", "API key not valid.", {"reason": "API_KEY_INVALID"}), ProviderAuthError),
    ("gemini", 404, gemini(404, "NOT_FOUND", "models/x is not found"), NoSuchModel),
    (
        "gemini",
        429,
        [gemini(429, "RESOURCE_EXHAUSTED", "You exceeded your current quota, check your plan and billing details.")],
        RateLimited,
    ),
    ("gemini", 503, gemini(503, "UNAVAILABLE", "The model is overloaded."), Unavailable),
    # What proxies make of other providers' words, in their own dialect.
    ("openai", 400, openai("litellm.BadRequestError: AnthropicException - prompt is too long: 210000 tokens"), ContextOverflow),
    ("openai", 400, openai("litellm.ContextWindowExceededError: VertexAIException - 9 tokens"), ContextOverflow),
    ("openai", 400, openai("input token count (9) exceeds the maximum number of tokens allowed (8)"), ContextOverflow),
    ("openai", 400, openai("Input is too long for requested model."), ContextOverflow),
    ("anthropic", 400, anthropic("invalid_request_error", "This model's maximum context length is 8192 tokens"), ContextOverflow),
    ("responses", 400, openai("Your input exceeds the context window of this model."), ContextOverflow),
    ("openai", 400, openai("Budget has been exceeded! Current cost: 2, Max budget: 1", type="budget_exceeded"), QuotaExceeded),
    ("anthropic", 429, openai("litellm.RateLimitError: You exceeded your current quota", type="insufficient_quota"), QuotaExceeded),
    ("openai", 429, openai('{"status": "RESOURCE_EXHAUSTED", "message": "You exceeded your current quota"}'), RateLimited),
    ("openai", 402, openai("This request requires more credits, or fewer max_tokens.", code=402), QuotaExceeded),
    ("openai", 400, openai("openai/gpt-0 is not a valid model ID", code=400), NoSuchModel),
    ("openai", 400, openai("/chat/completions: Invalid model name passed in model=gpt-0"), NoSuchModel),
    ("openai", 404, openai("The API deployment for this resource does not exist.", code="DeploymentNotFound"), NoSuchModel),
    ("gemini", 500, gemini(500, "INTERNAL", "litellm.APIConnectionError: litellm.NotFoundError: OpenAIException - no such"), NoSuchModel),
    ("gemini", 500, gemini(500, "INTERNAL", "litellm.APIConnectionError: litellm.AuthenticationError: denied"), ProviderAuthError),
    ("gemini", 500, gemini(500, "INTERNAL", "litellm.APIConnectionError: litellm.RateLimitError: slow down"), RateLimited),
    ("gemini", 500, gemini(500, "INTERNAL", "litellm.APIConnectionError: litellm.BadRequestError: not so"), RequestRefused),
    ("openai", 400, openai("No connected db.", type="no_db_connection", code="400"), ProviderAuthError),
    ("anthropic", 400, anthropic("invalid_request_error", "You have reached your specified API usage limits."), QuotaExceeded),
    ("openai", 400, openai("However, the model is loaded with context length of only 4096 tokens, which is not enough."), ContextOverflow),
    ("openai", 400, openai("Cannot truncate prompt with n_keep (15028) >= n_ctx (7424)"), ContextOverflow),
    ("openai", 422, openai("Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4097."), ContextOverflow),
    (
        "openai",
        429,
        openai("Request too large for gpt-4o on tokens per min (TPM)", code="rate_limit_exceeded"),
        ContextOverflow,
    ),
    # vllm-project/vllm issue 4667 and pull request 36789; the second is the later wording.
    ("openai", 400, openai("max_tokens must be at least 1, got -186.", type="BadRequestError", code=400), ContextOverflow),
    ("openai", 400, openai("Input length (11680) exceeds model's maximum context length (4096)."), ContextOverflow),
    ("openai", 400, openai("However, the model's context length is only 40960 tokens, resulting in a maximum"), ContextOverflow),
    # DeepSeek: deepseek-ai/awesome-deepseek-integration issue 13, 666ghj/BettaFish issue 108.
    ("openai", 400, openai("Content Exists Risk", type="invalid_request_error", code="invalid_request_error"), ContentFiltered),
    ("openai", 400, openai("Model Not Exist", type="invalid_request_error", code="invalid_request_error"), NoSuchModel),
    # Groq: RightNow-AI/openfang issue 60; 498 is in its documentation of errors.
    ("openai", 400, openai("The model `m` has been decommissioned and is no longer supported.", code="model_decommissioned"), NoSuchModel),
    ("openai", 498, openai("Flex tier capacity exceeded"), Unavailable),
    # xAI: continuedev/continue issue 12670, luxus/pi-xai issue 10.
    ("openai", 403, {"code": "403", "error": "Your newly created team doesn't have any credits or licenses yet."}, QuotaExceeded),
    ("openai", 403, openai("You have run out of credits or need a Grok subscription."), QuotaExceeded),
    # Bedrock: MattJColes/lgtmaybe pull request 70, terricain/aioboto3 issue 352.
    ("openai", 400, openai("BedrockException - The provided model identifier is invalid."), NoSuchModel),
    ("anthropic", 400, {"message": "Invocation of model ID m with on-demand throughput isn’t supported."}, NoSuchModel),
    # From the providers' pages of errors: OpenRouter's moderation, Mistral's model, OpenAI's inactive account.
    ("openai", 403, openai('m requires moderation on OpenAI. Your input was flagged for "violence".', code=403), ContentFiltered),
    ("openai", 400, {"object": "error", "message": "Invalid model: m", "type": "invalid_model", "code": "1500"}, NoSuchModel),
    ("openai", 429, openai("Your account is not active", type="billing_not_active", code="billing_not_active"), QuotaExceeded),
]
TOLD_AS_TEXT: list[tuple[str, type[NearfarError]]] = [
    ("400", RequestRefused),
    ("401", ProviderAuthError),
    ("404", NoSuchModel),
    ("429", RateLimited),
    ("500", Unavailable),
    ("1429", Unavailable),
]


def as_body(value: object) -> str:
    return value if isinstance(value, str) else sse(value).removeprefix("data: ").strip()


async def failure(server: Server, dialect: str = "openai", *, calls: int = 1, request: StepRequest | None = None) -> NearfarError:
    """What a step at `server` raises."""
    agent = agent_at(server.base_url, dialect, calls=calls)
    try:
        with pytest.raises(NearfarError) as caught:
            await complete(agent, request or asking())
        return caught.value
    finally:
        await agent.aclose()


@pytest.mark.parametrize(("dialect", "status", "body", "expected"), RESPONSES)
async def test_error_response_becomes_its_class_and_says_what_to_do(
    dialect: str, status: int, body: object, expected: type[NearfarError]
) -> None:
    async def answer(exchange: Exchange) -> None:
        await exchange.respond(status, as_body(body))

    async with http_server(answer) as server:
        error = await failure(server, dialect)
    assert type(error) is expected
    assert error.hint
    assert str(status) in error.message


@pytest.mark.parametrize(
    ("content_type", "body", "expected"),
    [
        ("text/html; charset=utf-8", "<html>Welcome</html>", RequestRefused),
        ("application/json", '{"choices": []}', InvalidOutput),
        ("application/json", "", InvalidOutput),
    ],
)
async def test_success_that_is_no_event_stream_is_told_with_what_to_do(content_type: str, body: str, expected: type[NearfarError]) -> None:
    async def answer(exchange: Exchange) -> None:
        await exchange.respond(200, body, content_type=content_type)

    async with http_server(answer) as server:
        error = await failure(server, calls=3)
        assert len(server.exchanges) == 1
    assert type(error) is expected
    assert "base_url" in error.hint


async def test_html_error_page_is_not_quoted() -> None:
    async def answer(exchange: Exchange) -> None:
        await exchange.respond(404, "<!DOCTYPE html><html><b>Not here</b>" + "x" * 200_000, content_type="text/html")

    async with http_server(answer) as server:
        error = await failure(server)
    assert type(error) is NoSuchModel
    assert "HTML page" in error.message
    assert "<b>" not in str(error)


async def test_redirect_is_not_followed_because_it_would_carry_the_key_away() -> None:
    async def answer(exchange: Exchange) -> None:
        await exchange.respond(307, "", location="https://elsewhere.example/v1?key=secret")

    async with http_server(answer) as server:
        error = await failure(server)
        assert len(server.exchanges) == 1
    assert type(error) is RequestRefused
    assert "elsewhere.example" in error.message
    assert "secret" not in str(error)


@pytest.mark.parametrize("body", ["data: {broken\n\n", "data: [1]\n\n", "\x00\xff garbage \n\n\n", "", "data: " + "[" * 100_000 + "\n\n"])
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_garbage_stream_is_invalid_output(dialect: str, body: str) -> None:
    async def answer(exchange: Exchange) -> None:
        await exchange.stream([body] if body else [])

    async with http_server(answer) as server:
        assert type(await failure(server, dialect)) is InvalidOutput


async def test_connection_cut_in_mid_stream_loses_the_step() -> None:
    async def answer(exchange: Exchange) -> None:
        await exchange.open_stream()
        await exchange.send(sse(openai_chunk({"content": "begun"})))
        exchange.writer.close()

    async with http_server(answer) as server:
        assert type(await failure(server, calls=3)) is StepLost
        assert len(server.exchanges) == 1, "text was emitted, so no second call may be made"


async def test_refused_connection_is_unavailable_and_names_the_address() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{unused.getsockname()[1]}/v1"
        error = await failure(Server(address))
    assert type(error) is Unavailable
    assert address in error.message
    assert "base_url" in error.hint


@pytest.mark.parametrize("begun", [True, False])
async def test_silence_is_a_stall_and_is_not_retried(begun: bool) -> None:
    async def answer(exchange: Exchange) -> None:
        if begun:
            await exchange.open_stream()
            await exchange.send(sse(openai_chunk({"content": ""})))
        await exchange.until_client_leaves()

    async with http_server(answer) as server:
        agent = agent_at(server.base_url, idle=0.2, calls=3)
        with pytest.raises(Stalled), anyio.fail_after(30):
            await complete(agent, asking())
        await agent.aclose()
        assert len(server.exchanges) == 1


async def test_deadline_ends_the_step_and_its_connection() -> None:
    left = anyio.Event()

    async def answer(exchange: Exchange) -> None:
        await exchange.until_client_leaves()
        left.set()

    async with http_server(answer) as server:
        with anyio.fail_after(30):
            assert type(await failure(server, request=asking(timeout=0.3), calls=3)) is DeadlineExceeded
            await left.wait()


async def test_keepalives_do_not_outlast_the_deadline() -> None:
    async def answer(exchange: Exchange) -> None:
        await exchange.open_stream()
        while True:
            await exchange.send(": still thinking\n\n")
            await anyio.sleep(0.01)

    async with http_server(answer) as server:
        with anyio.fail_after(30):
            assert type(await failure(server, request=asking(timeout=0.3))) is DeadlineExceeded


async def test_failures_before_the_first_event_are_retried_up_to_the_limit() -> None:
    async def answer(exchange: Exchange) -> None:
        await exchange.respond(503, as_body(openai("busy")))

    async with http_server(answer) as server:
        assert type(await failure(server, calls=3)) is Unavailable
        assert len(server.exchanges) == 3
        assert len({exchange.headers["idempotency-key"] for exchange in server.exchanges}) == 1


async def test_retry_that_succeeds_answers_the_step() -> None:
    async def answer(exchange: Exchange) -> None:
        if len(server.exchanges) == 1:
            await exchange.respond(529, "overloaded")
        elif len(server.exchanges) == 2:
            exchange.writer.close()
        else:
            await exchange.stream([TEXTS["openai"]("at last")])

    async with http_server(answer) as server:
        agent = agent_at(server.base_url, calls=3)
        assert (await complete(agent, asking())).text == "at last"
        await agent.aclose()


async def test_connection_that_breaks_after_the_answer_began_is_not_retried() -> None:
    """The provider may charge what it has generated, such as half of a tool call, of which nothing was emitted yet."""

    async def answer(exchange: Exchange) -> None:
        await exchange.open_stream()
        await exchange.send(openai_call('{"city": ').partition("data: [DONE]")[0].rpartition("data: ")[0])
        exchange.writer.close()

    async with http_server(answer) as server:
        assert type(await failure(server, calls=3, request=asking(tools=(WEATHER,)))) is StepLost
        assert len(server.exchanges) == 1


@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
async def test_connection_that_breaks_after_the_last_event_fails_nothing(dialect: str) -> None:
    async def answer(exchange: Exchange) -> None:
        await exchange.open_stream()
        await exchange.send(TEXTS[dialect]("all of it"))
        exchange.writer.close()

    async with http_server(answer) as server:
        agent = agent_at(server.base_url, dialect)
        assert (await complete(agent, asking())).text == "all of it"
        await agent.aclose()


async def test_proxy_of_the_environment_gets_nothing_that_is_meant_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(exchange: Exchange) -> None:
        await exchange.stream([TEXTS["openai"]("direct")])

    async with http_server(answer) as server, http_server(answer) as proxy:
        for variable in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
            for name in (variable, variable.lower()):
                monkeypatch.setenv(name, proxy.base_url.removesuffix("/v1"))
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
        agent = agent_at(server.base_url)
        assert (await complete(agent, asking())).text == "direct"
        await agent.aclose()
        assert not proxy.exchanges


@pytest.mark.parametrize(("status", "body"), [(400, openai("no")), (401, openai("no")), (404, openai("no")), (402, openai("no"))])
async def test_failures_that_would_repeat_are_not_retried(status: int, body: object) -> None:
    async def answer(exchange: Exchange) -> None:
        await exchange.respond(status, as_body(body))

    async with http_server(answer) as server:
        await failure(server, calls=3)
        assert len(server.exchanges) == 1


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_the_providers_own_wait_is_obeyed_behind_a_proxy(dialect: str) -> None:
    async def answer(exchange: Exchange) -> None:
        await exchange.respond(429, as_body(openai("slow down")), **{"llm_provider-retry-after": "7"})

    async with http_server(answer) as server:
        assert (await failure(server, dialect)).retry_after == 7


async def test_retry_after_is_obeyed() -> None:
    async def answer(exchange: Exchange) -> None:
        if len(server.exchanges) == 1:
            await exchange.respond(429, as_body(openai("slow down")), retry_after="0.25")
        else:
            await exchange.stream([TEXTS["openai"]("ok")])

    async with http_server(answer) as server:
        agent = agent_at(server.base_url, calls=3)
        before = anyio.current_time()
        assert (await complete(agent, asking())).text == "ok"
        assert anyio.current_time() - before >= 0.25
        await agent.aclose()


@pytest.mark.parametrize("form", ["seconds", "date"])
async def test_pause_that_is_too_long_is_passed_on_instead_of_waited_for(form: str) -> None:
    header = "3600" if form == "seconds" else format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)

    async def answer(exchange: Exchange) -> None:
        await exchange.respond(429, as_body(openai("slow down")), retry_after=header)

    async with http_server(answer) as server:
        error = await failure(server, calls=3)
        assert len(server.exchanges) == 1
    assert type(error) is RateLimited
    assert error.retry_after is not None
    assert 3000 < error.retry_after <= 3600


async def test_retry_delay_in_the_body_counts_as_retry_after() -> None:
    body = gemini(429, "RESOURCE_EXHAUSTED", "quota", {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "1834.5s"})

    async def answer(exchange: Exchange) -> None:
        await exchange.respond(429, as_body(body))

    async with http_server(answer) as server:
        assert (await failure(server, "gemini", calls=3)).retry_after == 1834.5


async def test_pause_beyond_the_deadline_is_not_waited_for() -> None:
    async def answer(exchange: Exchange) -> None:
        await exchange.respond(429, as_body(openai("slow down")), retry_after="15")

    async with http_server(answer) as server:
        assert type(await failure(server, calls=3, request=asking(timeout=10))) is RateLimited
        assert len(server.exchanges) == 1


def test_delays_are_jittered_and_grow_within_their_bounds() -> None:
    policy = RetryPolicy(calls=9, first_delay=1.0, longest_delay=5.0)
    for made, bound in ((1, 1.0), (2, 2.0), (3, 4.0), (4, 5.0), (8, 5.0)):
        delays = [policy.delay(Unavailable("x"), calls_made=made, seconds_left=100) for _ in range(200)]
        assert all(delay is not None and 0 <= delay <= bound for delay in delays)
        assert len(set(delays)) > 100
    assert policy.delay(Unavailable("x"), calls_made=9, seconds_left=100) is None


@pytest.mark.parametrize("value", [None, "", "soon", "-1", "inf", "nan", "Wed, 99 Foo 2026", f"Mon, 01 Jan {'9' * 30} 00:00:00 GMT"])
def test_unreadable_retry_after_is_none(value: str | None) -> None:
    assert parse_retry_after(value) is None


async def test_closing_the_stream_closes_the_connection_at_once() -> None:
    left = anyio.Event()

    async def answer(exchange: Exchange) -> None:
        await exchange.open_stream()
        await exchange.send(sse(openai_chunk({"content": "a"})))
        await exchange.until_client_leaves()
        left.set()

    async with http_server(answer) as server:
        agent = agent_at(server.base_url)
        with anyio.fail_after(30):
            async with stream(agent, asking()) as events:
                assert isinstance(await anext(aiter(events)), TextDelta)
            await left.wait()
        await agent.aclose()


async def test_cancelling_the_task_closes_the_connection_at_once() -> None:
    arrived, left = anyio.Event(), anyio.Event()

    async def answer(exchange: Exchange) -> None:
        arrived.set()
        await exchange.until_client_leaves()
        left.set()

    async with http_server(answer) as server:
        agent = agent_at(server.base_url)
        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(complete, agent, asking())
                await arrived.wait()
                tasks.cancel_scope.cancel()
            await left.wait()
        await agent.aclose()


async def test_closing_the_agent_ends_its_running_step() -> None:
    async def answer(exchange: Exchange) -> None:
        arrived.set()
        await exchange.until_client_leaves()

    arrived = anyio.Event()
    outcome: list[NearfarError] = []

    async def run(agent: ProviderAgent) -> None:
        try:
            await complete(agent, asking())
        except NearfarError as error:
            outcome.append(error)

    async with http_server(answer) as server:
        agent = agent_at(server.base_url, calls=3)
        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(run, agent)
                await arrived.wait()
                await agent.aclose()
        assert len(server.exchanges) == 1
    assert [type(error) for error in outcome] == [StepLost]


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (asking(sensitivity=Sensitivity.PRIVATE), PrivacyViolation),
        (asking(output_schema={"type": "nonsense"}), InvalidRequest),
        (asking(" "), InvalidRequest),
        (asking(output_schema={"type": "number", "maximum": float("nan")}), InvalidRequest),
        (asking(output_schema={"type": "string", "title": "\ud83d"}), InvalidRequest),
    ],
)
async def test_request_that_may_not_be_sent_never_reaches_the_provider(request_: StepRequest, expected: type[NearfarError]) -> None:
    async def answer(exchange: Exchange) -> None:
        raise NotImplementedError

    async with http_server(answer) as server:
        assert type(await failure(server, request=request_)) is expected
        assert not server.exchanges


async def test_capability_that_is_switched_off_is_unsupported() -> None:
    agent = agent_at("http://127.0.0.1:1/v1", OpenAIDialect(tools=False, json_schema=None))
    with pytest.raises(Unsupported):
        await complete(agent, asking(output_schema={"type": "object"}))


@pytest.mark.parametrize("base_url", ["ftp://x/v1", "http://[::1", "not an address"])
async def test_unusable_base_url_is_a_config_error(base_url: str) -> None:
    agent = agent_at(base_url)
    with pytest.raises((ConfigError, Unavailable)):
        await complete(agent, asking())


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_the_key_is_in_no_log_and_no_error(dialect: str, caplog: pytest.LogCaptureFixture) -> None:
    """Providers echo keys: in error bodies and in streams."""
    caplog.set_level(logging.DEBUG)
    echo = f"bad key {KEY} in Bearer {KEY}, x-api-key={KEY}"
    answers = [(401, echo), (500, as_body(openai(echo))), (307, ""), (200, "")]
    errors: list[NearfarError] = []

    async def answer(exchange: Exchange) -> None:
        assert KEY in str(exchange.headers)
        status, body = answers[len(errors)]
        if status == 200:
            await exchange.stream([sse({"error": {"message": echo, "code": 500}})])
        else:
            await exchange.respond(status, body, location="/v2")

    async with http_server(answer) as server:
        for _ in answers:
            errors.append(await failure(server, dialect))
        garbage = agent_at(server.base_url, dialect)
    said = caplog.text + "".join(f"{error} {error!r} {error.__cause__!r} {error.hint}" for error in errors) + repr(garbage)
    assert KEY not in said
    assert len(errors) == 4


@pytest.mark.parametrize(
    "spelling",
    [
        r"q\/w+e=r&t'y\"u\\i\\o",
        "q%2Fw%2Be%3Dr%26t%27y%22u%5Ci%5Co",
        "q%2fw%2be%3dr%26t%27y%22u%5ci%5co",
        "q/w+e=r&amp;t&#x27;y&quot;u\\i\\o",
        r"q%2Fw+e\u003dr\u0026t'y\"u\\i\\o",
        "cS93K2U9ciZ0J3kidVxpXG8=",
        "q/w+e=r&t'y\"u\\i\\o",
    ],
)
def test_a_key_is_withheld_however_a_provider_spells_it(spelling: str) -> None:
    GivenKey("q/w+e=r&t'y\"u\\i\\o").reveal()
    assert quote(f"the key {spelling} is wrong").startswith("the key [redacted]")


@pytest.mark.parametrize("text", [f"at {KEY}.", "AIzaSyA0123456789abcdef", "sk-ant-api03-abc_def", "Bearer abcdef", "?key=abcdef&x"])
def test_quoted_text_holds_no_key(text: str) -> None:
    assert "[redacted]" in quote(text)
    assert "abcdef" not in quote(text)


def test_quoted_text_is_short_and_on_one_line() -> None:
    quoted = quote("a\n\x1b[31mb\t" + "c" * 10_000)
    assert "\n" not in quoted
    assert "\x1b" not in quoted
    assert len(quoted) < 400


def test_given_key_is_not_in_its_repr() -> None:
    assert KEY not in repr(GivenKey(KEY))


@pytest.mark.parametrize("key", ["", f"{KEY}\n", f"{KEY}é", f"{KEY} ", f" {KEY}"])
def test_key_that_no_header_can_carry_is_refused_without_being_quoted(key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        GivenKey(key)
    assert KEY not in str(caught.value)


@pytest.mark.parametrize("key", ["ключ", "a\nb", " a b ", "plain"])
async def test_any_idempotency_key_can_be_sent(key: str) -> None:
    async def answer(exchange: Exchange) -> None:
        await exchange.stream([TEXTS["openai"]("ok")])

    async with http_server(answer) as server:
        agent = agent_at(server.base_url)
        assert (await complete(agent, asking(idempotency_key=key))).text == "ok"
        await agent.aclose()
        assert server.exchanges[0].headers["idempotency-key"]


async def test_steps_beyond_the_concurrency_limit_wait() -> None:
    release = anyio.Event()

    async def answer(exchange: Exchange) -> None:
        first = len(server.exchanges) == 1
        if first:
            await release.wait()
        await exchange.stream([TEXTS["openai"]("first" if first else "second")])

    async with http_server(answer) as server:
        agent = ProviderAgent(OpenAIDialect(), "model-1", base_url=server.base_url, limits=Limits(concurrency=1))
        texts: list[str] = []

        async def run() -> None:
            texts.append((await complete(agent, asking())).text)

        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(run)
                tasks.start_soon(run)
                while not server.exchanges:
                    await anyio.lowlevel.checkpoint()
                await anyio.wait_all_tasks_blocked()
                assert len(server.exchanges) == 1
                release.set()
        await agent.aclose()
    assert texts == ["first", "second"]


@pytest.mark.parametrize(("code", "expected"), TOLD_AS_TEXT)
async def test_a_status_that_a_proxy_writes_as_text_in_its_stream_counts(code: str, expected: type[NearfarError]) -> None:
    complaint = openai("something", type="None", code=code)  # as LiteLLM writes its ProxyException

    async def answer(exchange: Exchange) -> None:
        await exchange.stream([sse(complaint)])

    async with http_server(answer) as server:
        assert type(await failure(server)) is expected
