"""Embeddings as OpenAI's client asks for them, and typed questions as LangChain's decision models ask them."""

import json

import openai
import pytest
from http_face import may, openai_client, raw_client, served, strictly
from openai.types import CreateEmbeddingResponse

from nearfar import Hybrid, ScriptedAgent, Side, StepRequest
from nearfar.protocols.fakes import Reply

pytestmark = pytest.mark.anyio

ASK = "/v1/systemone"


def near(confidence: float | None = 0.8) -> ScriptedAgent:
    def answer(request: StepRequest) -> Reply:
        assert request.output_schema is not None
        return json.dumps({"answer": request.output_schema["properties"]["answer"]["enum"][-1]})

    return ScriptedAgent(answer, name="near", model="small", confidence=confidence)


async def test_the_client_gets_vectors_that_compare_meanings() -> None:
    async with Hybrid(near=near()) as hybrid, served(hybrid) as server, openai_client(server) as client:
        texts = ["A cat sleeps.", "A kitten naps.", "Taxes rose in March."]
        whole = await client.embeddings.create(model="nearfar/embedding", input=texts)
        floats = await client.embeddings.create(model="nearfar/embedding", input=texts[0], encoding_format="float", dimensions=64)
    cat, kitten, taxes = (each.embedding for each in whole.data)
    assert len(cat) == 384
    assert sum(a * b for a, b in zip(cat, kitten, strict=True)) > sum(a * b for a, b in zip(cat, taxes, strict=True)) + 0.2
    assert len(floats.data[0].embedding) == 64
    assert sum(value * value for value in floats.data[0].embedding) == pytest.approx(1)
    assert whole.usage.prompt_tokens == whole.usage.total_tokens > 0
    assert whole.model.startswith("all-MiniLM")


async def test_an_embedding_is_valid_in_every_field_and_wrong_input_is_named() -> None:
    async with Hybrid(near=near()) as hybrid, served(hybrid) as server, raw_client(server) as client:
        body = {"model": "nearfar/embedding", "input": "A cat."}
        strictly(CreateEmbeddingResponse, (await client.post("/v1/embeddings", json=body)).json())
        changes: list[tuple[str, object]] = [
            ("input", [1, 2]),
            ("input", ""),
            ("input", []),
            ("dimensions", 1000),
            ("encoding_format", "int8"),
        ]
        for name, value in changes:
            response = await client.post("/v1/embeddings", json={**body, name: value})
            assert (response.status_code, response.json()["error"]["param"]) == (400, name)
    async with Hybrid(near=near()) as hybrid, served(hybrid) as server, openai_client(server) as client:
        with pytest.raises(openai.NotFoundError):
            await client.embeddings.create(model="text-embedding-3-small", input="A cat.")


async def test_questions_of_all_types_are_answered_with_probabilities() -> None:
    decisions = pytest.importorskip("langchain_core.decisions")
    questions = {
        "team": {"type": "choice", "instructions": "Which team?", "criteria": {"billing": "Money.", "sales": None}},
        "anger": {"type": "score", "instructions": "How angry?", "criteria": ["calm", "cross", "furious"]},
        "urgent": {"type": "noul", "instructions": "Is it urgent?"},
    }
    agent = near()
    async with Hybrid(near=agent) as hybrid, served(hybrid) as server, raw_client(server) as client:
        response = await client.post(ASK, json={"state": {"text": "Where is my money?"}, "questions": questions})
    answers = decisions.ClassifierResponse.model_validate(response.json()).answers
    assert (answers["team"].choice, answers["team"].confidence) == ("sales", pytest.approx(0.8))
    assert sum(answers["team"].probabilities.values()) == pytest.approx(1)
    assert answers["anger"].score == pytest.approx(0.8 * 2 + 0.1 * 1)
    assert answers["anger"].legend[0] == "calm"
    assert answers["urgent"].noul == pytest.approx(0.2)
    assert "Where is my money?" in agent.requests[0].messages[-1].text


async def test_a_choice_among_agents_is_the_routers_and_asks_none() -> None:
    agent, far = near(), ScriptedAgent([], name="far", side=Side.FAR)
    question = {"agent": {"type": "choice", "instructions": "Who is to do it?", "criteria": {"near": None, "far": None}}}
    body = {"state": "Add 2 and 3.", "questions": question}
    async with Hybrid(near=agent, far=far) as hybrid:
        async with served(hybrid) as server, raw_client(server) as client:
            public = (await client.post(ASK, json=body)).json()
        async with served(hybrid, may()) as server, raw_client(server) as client:
            private = (await client.post(ASK, json=body)).json()
    assert set(public["answers"]["agent"]["probabilities"]) == {"near", "far"}
    assert private["answers"]["agent"]["probabilities"] == {"near": 1.0, "far": 0.0}
    assert agent.requests == far.requests == []


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"questions": {}}, "state"),
        ({"state": "a"}, "questions"),
        ({"state": "a", "questions": {"q": {"type": "box", "instructions": "Where?"}}}, "questions.q"),
        ({"state": "a", "questions": {"q": {"type": "score", "instructions": "How?", "criteria": ["one"]}}}, "questions.q.criteria"),
        ({"state": "a", "questions": {"q": {"type": "noul", "instructions": "Is it?"}}}, "questions.q"),
    ],
)
async def test_a_question_that_cannot_be_answered_is_named(body: dict[str, object], param: str) -> None:
    async with Hybrid(near=near(None)) as hybrid, served(hybrid) as server, raw_client(server) as client:
        response = await client.post(ASK, json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
