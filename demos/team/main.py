"""A team: three roles with instructions and tools of their own hand one task to each other; the router chooses the side of each.

The shipped models know no roles, so recorded replies of a large model stand in for both sides.
"""

import asyncio
import os
from contextlib import aclosing

from nearfar import Hybrid, Role, ScriptedAgent, Side, TaskEvent, ToolCall, tool


@tool(effect="read", source="internal_tool")
def find_train(to: str, day: str) -> str:
    """The next train to a city on a day, with its price."""
    return f"{day} 09:12 to {to}, 86 euros, one change"


@tool(effect="read", returns="device", source="internal_tool")  # what it returns never leaves this device
def read_account() -> str:
    """The balance of the user's account, and what is reserved for rent."""
    return "balance 1,014 euros, 940 of them reserved for rent on the third"


TEAM = {
    "desk": Role(
        instructions="You are the front desk. You hand each task to the role that it is for, and answer nothing yourself.",
        hand_off_to=["travel", "money"],
    ),
    "travel": Role(
        instructions="You plan journeys. When a journey is found, you hand over to money, who knows what the user can afford.",
        tools=[find_train],
        hand_off_to=["money"],
        mode="prefer_in_cloud",  # journeys are no secret, and the large model plans them better
    ),
    "money": Role(
        instructions="You look after the user's money. You answer whether something can be afforded, and why.",
        tools=[read_account],
        hand_off_to=[],
        mode="only_on_device",  # the account stays here
    ),
}
NEAR_SAID = [
    ToolCall(id="1", name="hand_off_to_travel", arguments={"task": "Find a train to Port Ulmar on Friday. Is it affordable?"}),
    ToolCall(id="2", name="read_account", arguments={}),
    "No. The train costs 86 euros. Of your 1,014 euros 940 are reserved for the rent, which leaves 74: you are 12 euros short.",
]
FAR_SAID = [
    ToolCall(id="1", name="find_train", arguments={"to": "Port Ulmar", "day": "Friday"}),
    ToolCall(id="2", name="hand_off_to_money", arguments={"task": "Can the user afford 86 euros for the train on Friday at 09:12?"}),
]
NEAR = os.environ.get("NEARFAR_NEAR") or ScriptedAgent(NEAR_SAID, name="near")
FAR = os.environ.get("NEARFAR_FAR") or ScriptedAgent(FAR_SAID, name="far", side=Side.FAR)


def show(event: TaskEvent) -> None:
    """Print what happens while it happens."""
    match event.type:
        case "role_started":
            print(f"{event.role}:" if not event.by else f"{event.role}, asked by {event.by}: {event.task}")
        case "attempt_started":
            print(f"  {event.agent} works on it")
        case "tool_started" if not event.call.name.startswith("hand_off_to_"):
            print(f"  {event.call.name}({', '.join(map(str, event.call.arguments.values()))})")
        case "tool_finished" if not event.result.name.startswith("hand_off_to_"):
            print(f"    -> {event.result.content}")
        case "task_finished":
            print("answer:", event.result.text)
            print("may go:", event.result.label.tier, "because of", *event.result.label.origins)


async def main() -> None:
    task = "Can I afford the train to Port Ulmar on Friday?"
    async with Hybrid(near=NEAR, far=FAR, agents=TEAM, policy={"sensitivity": "public", "strategy": "route"}) as hybrid:
        print("task:", task)
        async with aclosing(hybrid.stream(task, role="desk")) as stream:
            async for event in stream:
                show(event)
        edges = hybrid.graph_of("desk").get_graph().edges
        print("the team as a LangGraph graph:", "; ".join(f"{edge.source} -> {edge.target}" for edge in edges))


if __name__ == "__main__":
    asyncio.run(main())
