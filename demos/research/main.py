"""Research: one question over several passages, by two strategies, their transcripts side by side.

`pevr`: the far model plans, the near one follows the plan. `eva`: the near model starts at once, the far one looks at its progress.
"""

import asyncio
import os
from contextlib import aclosing
from itertools import zip_longest

from nearfar import Hybrid, Result, TaskEvent, tool

NEAR = os.environ.get("NEARFAR_NEAR", "near")  # the two small models that ship with nearfar, or yours
FAR = os.environ.get("NEARFAR_FAR") or {
    "provider": "llama",
    "prices": {"input": 3, "output": 15, "source": "as if it were a large model in the cloud", "as_of": "2026-10-24"},
}
QUESTION = "What is the birthplace of the neighbour of the accountant of Port Elster's airline?"
WIDTH = 58

passages = {
    "Port Elster": {"country": "Belmar Union", "mayor": "Tomas Holm", "airline": "Orbix Foods"},
    "Orbix Foods": {"city": "Port Elster", "ceo": "Sonja Winter", "accountant": "Mira Holm", "rival": "Lumen Works"},
    "Lumen Works": {"accountant": "Nora Dahl", "city": "New Oslen"},
    "Mira Holm": {"sister": "Nora Dahl", "neighbour": "Leo Olsen", "birthplace": "New Oslen"},
    "Leo Olsen": {"employer": "Lumen Works", "birthplace": "New Galen", "neighbour": "Mira Holm"},
    "Nora Dahl": {"employer": "Lumen Works", "birthplace": "East Bram"},
    "Tomas Holm": {"neighbour": "Nora Dahl", "birthplace": "East Bram"},
}


@tool(effect="read", source="internal_tool")
def search(query: str) -> str:
    """Titles of the passages that fit the words of the query best."""
    words = query.casefold().split()
    found = [title for title, sections in passages.items() if all(word in f"{title} {sections}".casefold() for word in words)]
    return "; ".join(found) or "nothing found"


@tool(effect="read", source="internal_tool")
def open(title: str, section: str) -> str:
    """A section of the passage with this exact title."""
    return passages[title].get(section, "not stated")


def lines_of(event: TaskEvent) -> list[str]:
    """Return what a reader wants to know of an event."""
    match event.type:
        case "supervisor":
            return [f"{event.agent}: {event.text.splitlines()[0]}", *(f"     {line}" for line in event.text.splitlines()[1:])]
        case "tool_started":
            return [f"near: {event.call.name}({', '.join(map(str, event.call.arguments.values()))})"]
        case "tool_finished":
            return [f"      -> {event.result.content}"]
        case "task_finished":
            return [f"{event.result.agent} answers: {event.result.text}"]
        case _:
            return []


async def serve(hybrid: Hybrid, strategy: str) -> tuple[list[str], Result]:
    """Return the transcript and the result of the question under a strategy."""
    lines = [strategy, "-" * len(strategy)]
    async with aclosing(hybrid.stream(QUESTION, strategy=strategy, sensitivity="public")) as stream:
        async for event in stream:
            lines += lines_of(event)
    return lines, event.result


async def main() -> None:
    print("question:", QUESTION, "\n")
    policy = {"supervision": {"triggers": ["answer"]}}  # the far model checks each answer before it stands
    async with Hybrid(near=NEAR, far=FAR, tools=[search, open], policy=policy) as hybrid:
        (left, pevr), (right, eva) = [await serve(hybrid, strategy) for strategy in ("pevr", "eva")]
    for one, other in zip_longest(left, right, fillvalue=""):
        print(f"{one[:WIDTH]:{WIDTH}} | {other[:WIDTH]}".rstrip())
    print()
    for strategy, result in ("pevr", pevr), ("eva", eva):
        cost = "an unknown price" if result.dollars is None else f"${result.dollars:.5f}"
        print(f"{strategy}: {result.text}; far was asked {result.far.steps} times and read {result.far.usage.input_tokens} tokens: {cost}")


if __name__ == "__main__":
    asyncio.run(main())
