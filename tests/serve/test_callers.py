"""Callers of the HTTP server: what their tokens allow, what their requests may narrow, and where requests come from."""

from typing import Any

import anyio
import openai
import pytest
from attached import PIXEL
from http_face import ASK, CHAT, HEADERS, PUBLIC, TOKEN, may, openai_client, raw_client, served

from nearfar import Capabilities, ConfigError, Hybrid, ScriptedAgent, Side
from nearfar.orchestrator.compose.hub import CallerConfig, ServeConfig
from nearfar.orchestrator.serve import serve_hybrid
from nearfar.orchestrator.serve.requests import BODY_BYTES
from nearfar.protocols.security import Scope, TokenRecord, hashed

pytestmark = pytest.mark.anyio

MODELS = "/v1/models"


def pair() -> tuple[ScriptedAgent, ScriptedAgent]:
    near = ScriptedAgent(lambda _: "Near.", name="near", model="small", confidence=0.1)
    return near, ScriptedAgent(lambda _: "Far.", name="far", side=Side.FAR, model="big")


async def status(
    hybrid: Hybrid, allowed: CallerConfig = PUBLIC, headers: dict[str, str] | None = None, **change: object
) -> tuple[int, str]:
    """Return the status of a request, and its model or its error."""
    async with served(hybrid, allowed) as server, raw_client(server) as client:
        response = await client.post(CHAT, json={**ASK, **change}, headers=headers or {})
        body = response.json()
        return response.status_code, body["model"] if response.status_code == 200 else body["error"]["code"] or body["error"]["message"]


async def test_options_that_contradict_each_other_are_the_clients_error() -> None:
    near, far = pair()
    async with Hybrid(near=near, far=far) as hybrid:
        for strategy, mode in (("device", "only_in_cloud"), ("cloud", "only_on_device"), ("pevr", "only_in_cloud")):
            assert (await status(hybrid, model=f"nearfar/{strategy}", nearfar={"mode": mode}))[0] == 400


async def test_nothing_is_served_without_a_token() -> None:
    async with Hybrid(near=pair()[0]) as hybrid, served(hybrid) as server, raw_client(server, {}) as client:
        replies = [await client.get(MODELS), await client.post(CHAT, json=ASK), await client.get("/metrics"), await client.get("/v2")]
        wrong = await client.get(MODELS, headers={"authorization": "Bearer wrong"})
        assert (await client.get("/health")).json() == {"status": "ok"}
        assert (await client.head("/")).status_code == 200
    assert {reply.status_code for reply in (*replies, wrong)} == {401}
    assert replies[0].json()["error"]["type"] == "authentication_error"


async def test_a_token_without_the_scope_is_refused_and_anthropics_header_is_read() -> None:
    record = TokenRecord(id="1", caller="app", digest=hashed(TOKEN), scopes=frozenset({Scope.STEPS, Scope.METRICS}))
    async with (
        Hybrid(near=pair()[0]) as hybrid,
        serve_hybrid(hybrid, ServeConfig(address="127.0.0.1:0"), tokens=[record]) as server,
        raw_client(server, {"x-api-key": TOKEN}) as client,
    ):
        assert (await client.post(CHAT, json=ASK)).status_code == 403
        metrics = await client.get("/metrics")
    assert metrics.status_code == 200
    assert "nearfar_runs_total" in metrics.text or "# TYPE" in metrics.text


async def test_guesses_of_tokens_have_to_wait() -> None:
    async with Hybrid(near=pair()[0]) as hybrid, served(hybrid) as server, raw_client(server, {}) as client:
        replies = [await client.get(MODELS, headers={"authorization": f"Bearer {guess}"}) for guess in range(8)]
    assert [reply.status_code for reply in replies] == [401] * 5 + [429] * 3
    assert int(replies[-1].headers["retry-after"]) >= 1


async def test_a_private_token_makes_no_call_to_far() -> None:
    near, far = pair()
    async with Hybrid(near=near, far=far) as hybrid, served(hybrid, may()) as server, openai_client(server) as client:
        for model in ("nearfar/auto", "nearfar/cascade", "nearfar/route", "nearfar/device"):
            answer = await client.chat.completions.create(model=model, messages=ASK["messages"])
            assert answer.model == "small"
        for model in ("nearfar/far", "nearfar/cloud", "far"):
            with pytest.raises(openai.PermissionDeniedError) as raised:
                await client.chat.completions.create(model=model, messages=ASK["messages"])
            assert raised.value.code == "privacy_violation"
        with pytest.raises(openai.PermissionDeniedError):
            await client.chat.completions.create(
                model="nearfar/auto", messages=ASK["messages"], extra_body={"nearfar": {"sensitivity": "public"}}
            )
    assert far.requests == []


async def test_a_request_narrows_what_its_token_allows_and_never_widens_it() -> None:
    near, far = pair()
    only_near = may(sensitivity="public", mode="only_on_device")
    async with Hybrid(near=near, far=far) as hybrid:
        assert await status(hybrid) == (200, "big")
        assert await status(hybrid, nearfar={"sensitivity": "private"}) == (200, "small")
        assert await status(hybrid, headers={"x-nearfar-mode": "only_on_device"}) == (200, "small")
        assert await status(hybrid, headers={"x-nearfar-mode": "only_on_device"}, nearfar={"mode": "only_in_cloud"}) == (200, "big")
        assert await status(hybrid, only_near) == (200, "small")
        assert (await status(hybrid, only_near, nearfar={"mode": "auto"}))[0] == 403
        assert (await status(hybrid, only_near, model="nearfar/far"))[0] == 403


async def test_a_token_may_name_the_models_that_it_opens() -> None:
    near, far = pair()
    allowed = may(sensitivity="public", models=("near", "nearfar/near"))
    async with Hybrid(near=near, far=far) as hybrid, served(hybrid, allowed) as server, openai_client(server) as client:
        assert [model.id async for model in client.models.list()] == ["nearfar/near", "near"]
        with pytest.raises(openai.NotFoundError) as raised:
            await client.chat.completions.create(model="far", messages=ASK["messages"])
    assert (raised.value.code, far.requests) == ("model_not_found", [])


async def test_limits_of_token_policy_and_request_hold_together() -> None:
    near, far = pair()
    allowed = may(sensitivity="public", limits={"task": {"tokens": 1}})
    async with Hybrid(near=near, far=far) as hybrid:
        assert (await status(hybrid, allowed))[0] == 429
        assert (await status(hybrid, nearfar={"limits": {"task": {"tokens": 1}}}))[0] == 429
        assert (await status(hybrid, headers={"x-nearfar-limits": '{"task": {"tokens": 1}}'}))[0] == 429
        assert (await status(hybrid, allowed, nearfar={"limits": {"task": {"tokens": 10_000}}}))[0] == 429
        assert (await status(hybrid, headers={"x-nearfar-limits": "{"}))[0] == 400
    async with Hybrid(near=near, far=far, policy={"limits": {"task": {"tokens": 1}}}) as hybrid:
        assert (await status(hybrid, nearfar={"limits": {"task": {"tokens": 10_000}}}))[0] == 429


async def test_users_are_the_callers_unless_their_entry_names_one() -> None:
    near = ScriptedAgent(lambda _: "word " * 300, name="near")
    async with Hybrid(near=near, policy={"limits": {"user": {"tokens": 400}}}) as hybrid:
        mine = [await status(hybrid) for _ in range(3)]
        other = await status(hybrid, may(user="other"))
    assert (mine[0][0], mine[-1], other[0]) == (200, (429, "insufficient_quota"), 200)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"host": "evil.example"}, 403),
        ({"host": "localhost:80"}, 200),
        ({"host": "[::1]:80"}, 200),
        ({"host": "10.0.0.7"}, 200),
        ({"host": "proxy.example"}, 200),
        ({"host": "[bad"}, 403),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ([("origin", "https://app.example"), ("origin", "http://evil.example")], 403),
        ({"origin": "https://app.example"}, 200),
        ({"host": "localhost:7446", "origin": "http://localhost:7446"}, 200),
    ],
)
async def test_requests_of_foreign_pages_are_refused(headers: Any, expected: int) -> None:  # noqa: ANN401 - as the client takes them
    names: dict[str, Any] = {"hosts": ("proxy.example",), "origins": ("https://app.example",)}
    async with Hybrid(near=pair()[0]) as hybrid, served(hybrid, **names) as server, raw_client(server) as client:
        response = await client.post(CHAT, json=ASK, headers=headers)
    assert response.status_code == expected
    assert ("access-control-allow-origin" in response.headers) is (headers == {"origin": "https://app.example"})


async def test_no_page_may_read_anything_unless_its_origin_is_configured() -> None:
    preflight = {
        "origin": "https://app.example",
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization",
    }
    async with Hybrid(near=pair()[0]) as hybrid:
        async with served(hybrid) as server, raw_client(server, {}) as client:
            assert (await client.options(CHAT, headers=preflight)).status_code == 403
        async with served(hybrid, origins=("https://app.example",)) as server, raw_client(server, {}) as client:
            allowed = await client.options(CHAT, headers=preflight)
    assert (allowed.status_code, allowed.headers["access-control-allow-origin"]) == (200, "https://app.example")


async def test_a_body_that_is_too_large_is_refused_and_the_client_learns_why() -> None:
    body: dict[str, Any] = {**ASK, "messages": [{"role": "user", "content": "a" * BODY_BYTES}]}
    near = pair()[0]
    async with Hybrid(near=near) as hybrid, served(hybrid) as server, openai_client(server) as client:
        with pytest.raises(openai.APIStatusError) as raised:
            await client.chat.completions.create(**body)
    assert (raised.value.status_code, raised.value.code, near.requests) == (413, "request_too_large", [])


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"a":' * 100 + b"1" + b"}" * 100, b'"\xff"'])
async def test_what_is_no_json_object_is_refused(body: bytes) -> None:
    async with Hybrid(near=pair()[0]) as hybrid, served(hybrid) as server, raw_client(server) as client:
        response = await client.post(CHAT, content=body)
    assert (response.status_code, response.json()["error"]["type"]) == (400, "invalid_request_error")


async def test_a_conversation_of_more_messages_than_any_model_reads_is_refused_at_once() -> None:
    near = pair()[0]
    async with Hybrid(near=near) as hybrid, served(hybrid) as server, raw_client(server) as client:
        response = await client.post(CHAT, json={**ASK, "messages": [{"role": "user", "content": "a"}] * 10_001})
    assert (response.status_code, response.json()["error"]["param"], near.requests) == (400, "messages", [])


async def test_unknown_models_paths_and_methods_are_told() -> None:
    async with Hybrid(near=pair()[0]) as hybrid, served(hybrid) as server, raw_client(server) as client:
        model = await client.post(CHAT, json={**ASK, "model": "gpt-5"})
        path = await client.get("/v1/assistants")
        method = await client.get(CHAT)
    assert (model.status_code, model.json()["error"]["code"]) == (404, "model_not_found")
    assert (path.status_code, method.status_code) == (404, 405)


async def test_two_hundred_requests_at_once_stay_below_one_cap() -> None:
    near = ScriptedAgent(lambda _: "Here.", name="near")
    tokens = 0
    replies: list[int] = []
    policy = {"limits": {"user": {"tokens": 400}}}
    async with Hybrid(near=near, policy=policy) as hybrid, served(hybrid) as server, raw_client(server) as client:

        async def ask() -> None:
            response = await client.post(CHAT, json=ASK)
            replies.append(response.status_code)
            nonlocal tokens
            tokens += response.json()["usage"]["total_tokens"] if response.status_code == 200 else 0

        async with anyio.create_task_group() as tasks:
            for _ in range(200):
                tasks.start_soon(ask)
    assert set(replies) == {200, 429}
    assert len(replies) == 200
    assert tokens <= 400


async def test_a_server_that_others_can_reach_needs_tls_and_every_server_tokens() -> None:
    async with Hybrid(near=pair()[0]) as hybrid:
        for address, tokens, problem in (
            ("0.0.0.0:0", {"app": TOKEN}, "needs TLS"),
            ("127.0.0.1:0", {}, "needs a token"),
            ("unix:/tmp/a.sock", {"app": TOKEN}, "not served at"),
        ):
            with pytest.raises(ConfigError, match=problem):
                async with serve_hybrid(hybrid, ServeConfig(address=address), tokens=tokens):
                    pass
        async with served(hybrid) as server:
            taken = ServeConfig(address=server.address.removeprefix("http://"))
            with pytest.raises(ConfigError, match="cannot be used"):
                async with serve_hybrid(hybrid, taken, tokens={"app": TOKEN}):
                    pass


async def test_the_headers_name_run_and_cost_and_the_debug_header_tells_everything() -> None:
    near, far = pair()
    async with Hybrid(near=near, far=far) as hybrid, served(hybrid) as server, raw_client(server) as client:
        response = await client.post(CHAT, json=ASK, headers={"x-nearfar-debug": "true"})
        body = response.json()
    told = {name: response.headers[f"x-nearfar-{name}"] for name in ("run", "side", "agent", "model", "fallback", "attempts")}
    assert told == {"run": body["nearfar"]["run"], "side": "far", "agent": "far", "model": "big", "fallback": "true", "attempts": "2"}
    assert "x-nearfar-cost" not in response.headers  # the price is unknown, which is not 0
    assert [attempt["agent"] for attempt in body["nearfar"]["debug"]["attempts"]] == ["near", "far"]
    assert HEADERS["authorization"] not in response.text


async def test_a_public_policy_does_not_declare_that_images_may_leave() -> None:
    far = ScriptedAgent(lambda _: "seen", name="far", side=Side.FAR, capabilities=Capabilities(images=True))
    image = {"type": "image_url", "image_url": {"url": PIXEL.data_url}}
    body = {"model": "nearfar/auto", "messages": [{"role": "user", "content": [{"type": "text", "text": "What is it?"}, image]}]}
    async with Hybrid(far=far, policy={"sensitivity": "public"}) as hybrid:
        for allowed, status in ((CallerConfig(), 403), (PUBLIC, 200)):
            async with served(hybrid, allowed) as server, raw_client(server) as client:
                assert (await client.post(CHAT, json=body)).status_code == status
    assert len(far.requests) == 1
