"""A server on loopback in front of a `Hybrid`, and strict reading of what it sends."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import openai
import orjson
from pydantic import BaseModel

from nearfar import Hybrid, Sensitivity
from nearfar.orchestrator.compose.hub import CallerConfig, ServeConfig
from nearfar.orchestrator.serve import HttpServer, serve_hybrid

TOKEN, OTHER = "t" * 32, "o" * 32
PUBLIC = CallerConfig(sensitivity=Sensitivity.PUBLIC)
HEADERS = {"authorization": f"Bearer {TOKEN}"}
ASK: dict[str, Any] = {"model": "nearfar/auto", "messages": [{"role": "user", "content": "Look at it."}]}
CHAT = "/v1/chat/completions"


def may(**allowed: Any) -> CallerConfig:  # noqa: ANN401 - as in a file
    """Return what a caller may do, as its section says it."""
    return CallerConfig(**allowed)


@asynccontextmanager
async def served(
    hybrid: Hybrid,
    allowed: CallerConfig = PUBLIC,
    *,
    drain: float = 0.0,
    **config: Any,  # noqa: ANN401 - keys of the section
) -> AsyncIterator[HttpServer]:
    """Serve a `Hybrid` to a caller named `app` that may do what `allowed` says, and to one named `other`."""
    settings = ServeConfig(address="127.0.0.1:0", callers={"app": allowed}, **config)
    async with serve_hybrid(hybrid, settings, tokens={"app": TOKEN, "other": OTHER}, drain=drain) as server:
        yield server


@asynccontextmanager
async def raw_client(server: HttpServer, headers: dict[str, str] = HEADERS) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=server.address, headers=headers, timeout=60) as client:
        yield client


@asynccontextmanager
async def openai_client(
    server: HttpServer,
    *,
    token: str = TOKEN,
    **options: Any,  # noqa: ANN401 - of the client
) -> AsyncIterator[Any]:
    async with openai.AsyncOpenAI(base_url=f"{server.address}/v1", api_key=token, **options) as client:
        yield client


def strictly(kind: type[BaseModel], data: Any) -> Any:  # noqa: ANN401 - JSON, and an object of any type
    """Return the object that data stands for in the types of its maker. Raise where a field is missing, wrong, or none of these types'."""
    value = kind.model_validate(data)
    assert not (found := list(_extras(value, kind.__name__))), found
    return value


def _extras(value: object, where: str) -> Iterator[str]:
    if isinstance(value, BaseModel):
        yield from (f"{where}.{name}" for name in (value.model_extra or {}) if name != "nearfar")
        for name in value.model_fields_set & set(type(value).model_fields):
            yield from _extras(getattr(value, name), f"{where}.{name}")
    elif isinstance(value, list):
        for place, part in enumerate(value):
            yield from _extras(part, f"{where}[{place}]")


def events(text: str) -> list[tuple[str, Any]]:
    """Return the events of a stream, each with its name and its data; comments are left out."""
    found = []
    for block in text.split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.split("\n") if line and not line.startswith(":"))
        if "data" in lines:
            found.append((lines.get("event", ""), lines["data"] if lines["data"] == "[DONE]" else orjson.loads(lines["data"])))
    return found
