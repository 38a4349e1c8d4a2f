"""Errands: a task with tools of your own, approvals, and live events.

The far model plans. The near model does the work on this device, with your tools. You are asked before money moves.
"""

import asyncio
import os
from collections.abc import Mapping, Sequence
from contextlib import aclosing

from nearfar import ApprovalRequest, Hybrid, TaskEvent, tool

NEAR = os.environ.get("NEARFAR_NEAR", "near")  # the two small models that ship with nearfar, or yours
FAR = os.environ.get("NEARFAR_FAR") or {
    "provider": "llama",
    "prices": {"input": 3, "output": 15, "source": "as if it were a large model in the cloud", "as_of": "2026-10-24"},
}
# Other people write mails, so a real mailbox is an external_tool. The tiny shipped model does not know the marks around untrusted text.
MAIL_SOURCE = "external_tool" if "NEARFAR_NEAR" in os.environ else "internal_tool"

events = {"e1": ("Spring Review", "Monday", 14), "e2": ("Budget Call", "Friday", 9)}
mails = {
    "m1": ("Leo Olsen", "number", "My number is 9027."),
    "m2": ("Mira Holm", "invitation", "Harvest Lunch on Sunday at 13."),
    "m3": ("Mira Holm", "invoice", "Please pay me 45."),
    "m4": ("Leo Olsen", "invitation", "Annual Lunch on Tuesday at 12."),
    "m5": ("Leo Olsen", "invoice", "Please pay me 80."),
}
paid: list[tuple[str, int]] = []
sent: list[tuple[str, str]] = []


@tool(effect="read", source="internal_tool")
def find_event(title: str) -> str:
    """The id, day and hour of an event in the calendar."""
    return next(f"{key} {day} {hour}" for key, (name, day, hour) in events.items() if name == title)


@tool(source="internal_tool")
def add_event(title: str, day: str, hour: int) -> str:
    """Put an event into the calendar; the hour is a full one from 8 to 20."""
    events[f"e{len(events) + 1}"] = (title, day, hour)
    return "added"


@tool(effect="read", source="internal_tool")
def find_mails(sender: str) -> str:
    """Ids and subjects of the mails from a person."""
    return "; ".join(f"{key} {subject}" for key, (author, subject, _) in mails.items() if author == sender)


@tool(effect="read", source=MAIL_SOURCE)
def read_mail(mail: str) -> str:
    """The text of a mail, named by its id."""
    return mails[mail][2]


@tool(source="internal_tool")
def send_mail(to: str, text: str) -> str:
    """Send a mail. This cannot be undone."""
    sent.append((to, text))
    return "sent"


@tool(source="internal_tool", approval=True)
def pay(person: str, amount: int) -> str:
    """Pay a person an amount. This cannot be undone."""
    paid.append((person, amount))
    return "paid"


async def ask_user(requests: Sequence[ApprovalRequest]) -> Mapping[str, bool]:
    """Approve payments up to 50 and every other call. Your app would show a dialog here."""
    answers = {}
    for request in requests:
        arguments = request.call.arguments
        answers[request.id] = request.call.name != "pay" or int(str(arguments["amount"])) <= 50
        print(f"  ? {request.reason}: {'approved' if answers[request.id] else 'denied'}")
    return answers


def show(event: TaskEvent) -> None:
    """Print what happens while it happens."""
    match event.type:
        case "supervisor":
            print(f"{event.agent} plans:", *event.text.splitlines(), sep="\n  ")
        case "attempt_started":
            print(f"{event.agent} works:")
        case "tool_started":
            print(f"  {event.call.name}({', '.join(map(str, event.call.arguments.values()))})")
        case "tool_finished":
            print(f"    -> {event.result.content}")
        case "task_finished":
            result = event.result
            print(f"{result.agent} answers: {result.text}")
            cost = "an unknown price" if result.dollars is None else f"${result.dollars:.5f}"
            asked = [call.role for call in result.calls if call.side == "far"]
            print(f"far was asked for {len(asked)} of {len(result.calls)} steps ({', '.join(asked)}): {cost}; near costs nothing")


async def main() -> None:
    tools = [find_event, add_event, find_mails, read_mail, send_mail, pay]
    task = "Please pay Mira Holm what their invoice asks for, then put the invitation from Leo Olsen into the calendar."
    async with Hybrid(near=NEAR, far=FAR, tools=tools) as hybrid:
        print("task:", task)
        async with aclosing(hybrid.stream(task, strategy="pevr", sensitivity="public", approver=ask_user)) as stream:
            async for event in stream:
                show(event)
    print("paid:", *(f"{person} {amount}" for person, amount in paid))
    print("calendar:", ", ".join(title for title, _, _ in events.values()))


if __name__ == "__main__":
    asyncio.run(main())
