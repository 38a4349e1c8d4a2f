"""A laptop with Ollama: near is the model that Ollama runs already, far is any provider for which you have a key."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nearfar import Hybrid, tool

FAR = os.environ.get("NEARFAR_FAR") or {
    "provider": "llama",
    "model": "far",
    "prices": {"input": 3, "output": 15, "source": "as if it were a large model in the cloud", "as_of": "2026-10-24"},
}
passages = {
    "Port Elster": {"mayor": "Tomas Holm", "airline": "Orbix Foods"},
    "Orbix Foods": {"city": "Port Elster", "accountant": "Mira Holm"},
    "Mira Holm": {"neighbour": "Leo Olsen", "birthplace": "New Oslen"},
    "Leo Olsen": {"birthplace": "New Galen", "neighbour": "Mira Holm"},
}


@tool(effect="read", source="internal_tool")
def open(title: str, section: str) -> str:
    """A section of the passage with this exact title."""
    return passages[title].get(section, "not stated")


@contextmanager
def ollama() -> Iterator[str | dict[str, Any]]:
    """Yield the near side: `ollama:MODEL` of yours, or a server that stands in for Ollama at another port."""
    if "NEARFAR_NEAR" in os.environ:
        yield os.environ["NEARFAR_NEAR"]
        return
    stand_in = [sys.executable, str(Path(__file__).with_name("stand_in.py"))]
    with subprocess.Popen(stand_in, stdout=subprocess.PIPE, text=True) as process:
        try:
            port = process.stdout.readline().strip()
            yield {"provider": "ollama", "base_url": f"http://127.0.0.1:{port}/v1", "model": "tiny:1.4m"}
        finally:
            process.terminate()


async def ask(hybrid: Hybrid, question: str, **options: str) -> None:
    print(f"{question} [{options['sensitivity']}]")
    result = await hybrid.run(question, **options)
    for step in result.calls:
        print(f"  {step.agent} ({step.model}): {step.role}")
    left = "nothing left this laptop" if not result.far.steps else f"far read {result.far.usage.input_tokens} tokens"
    cost = "an unknown price" if result.dollars is None else f"${result.dollars:.5f}"
    print(f"  answer: {result.text}; {left}; {cost}")


async def main() -> None:
    with ollama() as near:
        async with Hybrid(near=near, far=FAR, tools=[open]) as hybrid:
            await ask(hybrid, "What is the accountant of Orbix Foods?", sensitivity="private")
            question = "What is the birthplace of the neighbour of the accountant of Port Elster's airline?"
            await ask(hybrid, question, sensitivity="public", strategy="pevr")


if __name__ == "__main__":
    asyncio.run(main())
