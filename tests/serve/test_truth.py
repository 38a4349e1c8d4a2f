"""Responses tell the truth: the model that answered, nothing of a rejected draft, nothing of a private task to a far agent."""

import random
from typing import Any

import httpx
import pytest
from http_face import ASK, CHAT, events, may, raw_client, served

from nearfar import Hybrid, InternalError, InvalidOutput, RateLimited, ScriptedAgent, Side, StepLost, ToolCall, Unavailable
from nearfar.protocols.fakes import Reply, ScriptItem

pytestmark = pytest.mark.anyio

LOOK = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}}}
AGENTS = ("near", "second", "far")
ERRORS = (Unavailable, StepLost, InternalError, RateLimited, InvalidOutput)
MODELS = ("nearfar/auto", "nearfar/cascade", "nearfar/cascade", "nearfar/route", "nearfar/cloud", "nearfar/device", "nearfar/eva")


class World:
    """A pair of agents that answer at random and name themselves in each word; set anew for each request."""

    def __init__(self, random: random.Random) -> None:
        self._random = random
        self.near, self.second = (self._agent(name, Side.NEAR) for name in ("near", "second"))
        self.far = self._agent("far", Side.FAR)

    def _agent(self, name: str, side: Side) -> ScriptedAgent:
        confidence = self._random.choice((None, 0.1, 0.5, 0.9, 0.99))
        return ScriptedAgent(lambda _: self._reply(name), name=name, side=side, model=f"model of {name}", confidence=confidence)

    def _reply(self, name: str) -> Reply:
        said: list[ScriptItem] = [self._random.choice((f"{name} ", f"{name}\n")) for _ in range(self._random.randrange(4))]
        match self._random.randrange(6):
            case 0 | 1:
                said.append(self._random.choice(ERRORS)(f"{name} failed"))
            case 2:
                said.append(ToolCall(id=f"{name}-1", name="look", arguments={"at": name}))
        return said


def told(response: httpx.Response) -> tuple[list[str], str, dict[str, Any]]:
    """Return all models that a response names, all its text and calls, and its object `nearfar`."""
    if response.headers["content-type"] == "text/event-stream":
        chunks = [data for _, data in events(response.text) if data != "[DONE]" and "error" not in data]
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
        said = "".join(f"{delta.get('content') or ''}{delta.get('tool_calls') or ''}" for delta in deltas)
        return [chunk["model"] for chunk in chunks], said, chunks[-1].get("nearfar", {}) if chunks else {}
    body = response.json()
    message = body["choices"][0]["message"]
    return [body["model"]], f"{message['content'] or ''}{message.get('tool_calls') or ''}", body["nearfar"]


@pytest.mark.timeout(400)
async def test_a_thousand_cascades_name_the_right_model_and_show_no_rejected_draft() -> None:
    whole = streamed = failed = 0
    for seed in range(50):
        choose = random.Random(seed)
        world = World(choose)
        policy = {"fallback": {"after_first_token": choose.choice(("never", "restart"))}}
        hybrid = Hybrid(near=world.near, far=world.far, agents={"second": world.second}, policy=policy)
        async with hybrid, served(hybrid) as server, raw_client(server) as client:
            for _ in range(20):
                body = {**ASK, "model": choose.choice(MODELS), "stream": choose.random() < 0.5, "tools": choose.choice(([], [LOOK]))}
                response = await client.post(CHAT, json=body)
                if response.status_code != 200:
                    failed += 1
                    continue
                models, said, facts = told(response)
                speakers = {name for name in AGENTS if name in said}
                assert len(speakers) <= 1, f"seed {seed}: {said!r}"
                assert len(set(models)) <= 1, f"seed {seed}: {models}"
                if facts:  # else the stream broke off
                    assert speakers <= {facts["agent"]}, f"seed {seed}"
                    assert set(models) == {f"model of {facts['agent']}"}, f"seed {seed}"
                if speakers:
                    assert set(models) == {f"model of {speakers.pop()}"}, f"seed {seed}"
                whole, streamed = whole + (not body["stream"]), streamed + body["stream"]
    assert min(whole, streamed) > 200, (whole, streamed, failed)


async def test_no_random_request_of_a_private_token_reaches_the_far_agent() -> None:
    choose = random.Random(7)
    world = World(choose)
    hybrid = Hybrid(near=world.near, far=world.far, agents={"second": world.second}, policy={"sensitivity": "public"})
    async with hybrid, served(hybrid, may(sensitivity="private")) as server, raw_client(server) as client:
        for _ in range(200):
            asked = choose.choice(
                ({}, {"sensitivity": "public"}, {"mode": "only_in_cloud"}, {"strategy": "cloud"}, {"mode": "prefer_in_cloud"})
            )
            model = choose.choice((*MODELS, "far", "nearfar/far"))
            await client.post(CHAT, json={**ASK, "model": model, "nearfar": asked, "stream": choose.random() < 0.5})
    assert world.far.requests == []
    assert world.near.requests
