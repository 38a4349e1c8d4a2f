"""The shipped near model as a test subject, and prompts that make it do things."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from llama_engine import HAS_LLAMA

import nearfar.device
from nearfar import LlamaAgent, OnnxAgent
from nearfar.device.worker import LocalAgent
from nearfar.protocols import Agent, Message, StepRequest, ToolSpec, complete

NEAR = Path(nearfar.device.__file__).parent / "models" / "near.gguf"
QUESTION = "What is the mayor of Port Alder?"
CONTEXT_TOKENS = 1024
"""Where long replies run to the end of the context, half of what the model was made for shows the same."""
OPEN = ToolSpec(
    name="open",
    description="Open a section of a passage.",
    parameters={
        "type": "object",
        "properties": {"title": {"type": "string"}, "section": {"type": "string"}},
        "required": ["title", "section"],
    },
)

ENGINE: type[LlamaAgent] | type[OnnxAgent] = LlamaAgent if HAS_LLAMA else OnnxAgent
"""The class that runs the model here."""

_LONG_ENOUGH = 200
# Outside its world the model mostly repeats itself without end; on which prompts depends on its training.
_CANDIDATES = (
    "open open open.",
    "a a a a a a a a?",
    "{{{{{{{{{{{{",
    "1 1 1 1 1 11 1 1 1 1 1?",
    "Write a long story.Write a long story.",
    "ha ha ha haha ha ha ha",
    "Count up: 1 2 3 4 5 6 7 8",
    "city of city of city of",
)
_found: list[str] = []


@asynccontextmanager
async def near_agent(model: Path = NEAR, *, parallel: int = 4, context_tokens: int | None = None) -> AsyncIterator[LocalAgent]:
    """The near model, closed on the way out."""
    async with await ENGINE.load(model, parallel=parallel, context_tokens=context_tokens) as agent:
        yield agent


async def long_prompt() -> str:
    """A prompt that the near model answers with hundreds of tokens."""
    if not _found:
        async with near_agent() as agent:
            _found.append(await prompt_with_long_answer(agent))
    return _found[0]


async def prompt_with_long_answer(agent: Agent) -> str:
    """The same for another form of the near model."""
    for prompt in _CANDIDATES:
        reply = await complete(agent, ask(prompt))
        if reply.finished.usage.output_tokens >= _LONG_ENOUGH:
            return prompt
    raise LookupError("the near model now answers all candidate prompts briefly: add others")


def ask(prompt: str, **fields: object) -> StepRequest:
    """A request with one user message."""
    return StepRequest.model_validate({"messages": (Message.user(prompt),), **fields})
