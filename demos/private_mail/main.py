"""Private mail: labels keep mails on this device, placeholders stand for addresses, and the audit shows what left.

1. The far model may start, but may not read the mails that its own tool calls brought up: the near model takes over.
2. The user names an address. The far model gets a placeholder, and the tool gets the address.
"""

import asyncio
import os
import re
from pathlib import Path
from tempfile import TemporaryDirectory

from nearfar import Hybrid, PrivacyRecords, Result, ScriptedAgent, Side, StepRequest, ToolCall, tool

NEAR = os.environ.get("NEARFAR_NEAR", "near")  # the two small models that ship with nearfar, or yours
FAR = os.environ.get("NEARFAR_FAR", "far")
MAILS = {"m1": "My number is 9027.", "m4": "Annual Lunch on Tuesday at 12."}


@tool(effect="read", returns="device", source="internal_tool")  # what it returns never leaves this device
def find_mails(sender: str) -> str:
    """Ids and subjects of the mails from a person."""
    return "m1 number; m4 invitation"


@tool(effect="read", returns="device", source="internal_tool")
def read_mail(mail: str) -> str:
    """The text of a mail, named by its id."""
    return MAILS[mail]


@tool(source="internal_tool")
def add_contact(name: str, phone: str) -> str:
    """Save a contact, or give an existing one another number."""
    return "saved"


@tool(source="internal_tool")
def send_mail(to: str, text: str) -> str:
    """Send a mail. This cannot be undone."""
    print(f"  your mail server sends to {to}: {text}")
    return "sent"


def recorded(request: StepRequest) -> ToolCall | str:
    """Repeat what a large model replied to these messages. Its placeholder had other letters, so this run's is put in."""
    if request.messages[-1].role == "tool":
        return "The mail is sent."
    said = request.messages[-1].text
    print("  the far model reads:", re.sub(r"_\w{6}>", "_...>", said))
    address = re.findall(r"<EMAIL_\w+>", said)[0]
    return ToolCall(id="1", name="send_mail", arguments={"to": address, "text": "The meeting begins at nine tomorrow."})


def show(result: Result, folder: Path) -> None:
    for call in result.tool_calls:
        print(f"  {call.agent} calls {call.call.name} -> {call.result}")
    print(f"  {result.agent} answers: {result.text}")
    print("  what left this device, by the audit:")
    for message in PrivacyRecords(folder).outbound_log(result.id):
        held = f": {message.reason.partition(';')[0]}" if message.outcome == "held" else ""
        print(f"    to {message.agent}: {message.outcome}, {message.bytes} bytes, {sum(message.findings.values())} findings{held}")


async def main(folder: Path) -> None:
    print("1. 'Please save the number that Leo Olsen wrote.'")
    async with Hybrid(near=NEAR, far=FAR, tools=[find_mails, read_mail, add_contact], records=folder) as hybrid:
        task = "Please save the number that Leo Olsen wrote."
        show(await hybrid.run(task, strategy="route", mode="prefer_in_cloud", sensitivity="public"), folder)
    print("2. 'Tell leo.olsen@example.org that the meeting begins at nine tomorrow.'")
    far = os.environ.get("NEARFAR_FAR") or ScriptedAgent(recorded, name="far", side=Side.FAR)
    privacy = {"findings": "placeholder", "placeholders": True}
    async with Hybrid(far=far, tools=[send_mail], policy={"privacy": privacy, "strategy": "cloud"}, records=folder) as hybrid:
        task = "Tell leo.olsen@example.org that the meeting begins at nine tomorrow."
        show(await hybrid.run(task, sensitivity="public"), folder)


if __name__ == "__main__":
    with TemporaryDirectory() as name:
        asyncio.run(main(Path(name)))
