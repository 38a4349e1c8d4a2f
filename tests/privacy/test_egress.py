"""What is about to leave is looked through twice: by detectors, and for private data of the run in the bytes themselves."""

import base64
import json
import re
import threading
from collections.abc import Sequence
from contextlib import aclosing
from itertools import count
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from nearfar import Hybrid, Tier, tool
from nearfar.orchestrator.agents import AgentHandle
from nearfar.orchestrator.hybrid.arguments import TaskOptions
from nearfar.orchestrator.safety.detection import UNCHECKED, Detectors, PrivateFinding, resolve
from nearfar.orchestrator.safety.detection.contacts import EMAIL
from nearfar.orchestrator.safety.detection.standard import CARD, IBAN, passes_iban, passes_luhn
from nearfar.orchestrator.safety.privacy import RunPrivacy
from nearfar.orchestrator.safety.scanner import KnownSecrets, OutboundScanner
from nearfar.orchestrator.task.labels import Label
from nearfar.orchestrator.task.policy import OnFinding, Policy, PrivacyConfig
from nearfar.protocols import Message, PrivacyViolation, ScriptedAgent, Sensitivity, Side, StepRequest, ToolCall, ToolResult
from nearfar.protocols.agent import DeviceState, complete
from nearfar.protocols.client import RemoteAgent
from nearfar.protocols.hub_session import Registration, WorkerSession
from nearfar.protocols.limits import Heartbeat
from nearfar.protocols.secrets import inspected_by
from nearfar.protocols.server import serve

pytestmark = pytest.mark.anyio

SECRET = "tomas.berg7@example.org"
LONG = "Appointment with Doctor Bergström on Monday: patient AX-4471-992, the diagnosis is still pending."
FAR: TaskOptions = {"mode": "prefer_in_cloud", "strategy": "route"}


def public(findings: OnFinding = OnFinding.STAY) -> Policy:
    return Policy(sensitivity=Sensitivity.PUBLIC, privacy=PrivacyConfig(findings=findings))


def pair(near: str = "near", far: str = "far") -> tuple[ScriptedAgent, ScriptedAgent]:
    return ScriptedAgent([near], name="near"), ScriptedAgent([far], name="far", side=Side.FAR)


def _result(text: str) -> ToolResult:
    return ToolResult(call_id="1", name="read_diary", content=text)


class Broken:
    """A detector that fails."""

    def find(self, text: str) -> Sequence[PrivateFinding]:
        raise ZeroDivisionError(text)


class Endless:
    """A detector that does not come to its end."""

    def find(self, text: str) -> Sequence[PrivateFinding]:
        threading.Event().wait()  # in a thread of its own, which nobody waits for
        return []


FORMS = {
    "plain": SECRET,
    "upper case": SECRET.upper(),
    "spaced": " ".join(SECRET),
    "over lines": "\n".join(SECRET),
    "base64": base64.b64encode(SECRET.encode()).decode(),
    "base64 within": base64.b64encode(f"x{SECRET}yy".encode()).decode(),
    "base64 for addresses": base64.urlsafe_b64encode(f"??>{SECRET}".encode()).decode(),
    "percent": quote(SECRET, safe=""),
    "all percent": "".join(f"%{byte:02x}" for byte in SECRET.encode()),
    "hex": SECRET.encode().hex(),
    "spaced hex": SECRET.encode().hex(" ").upper(),
    "JSON": "".join(f"\\u{ord(character):04x}" for character in SECRET),
    "HTML": "".join(f"&#{ord(character)};" for character in SECRET),
    "invisible": "\u200b".join(SECRET),
    "dotted": "\u00b7".join(SECRET),
    "with dashes": "\u2014".join(SECRET),
    "with accents": "\u0301".join(SECRET),
    "other invisible": "\u200e\ufe0f".join(SECRET),
    "tags": "".join(chr(0xE0000 + ord(character)) for character in SECRET),
    "other scripts": SECRET.translate(str.maketrans("aeop", "\u0430\u0435\u043e\u0440")),
    "backwards": SECRET[::-1],
    "base64 over escaped lines": json.dumps("\n".join(re.findall(".{1,16}", base64.b64encode(SECRET.encode()).decode()))),
}


@pytest.mark.parametrize("form", FORMS)
def test_value_is_found_in_every_form(form: str) -> None:
    secrets = KnownSecrets()
    secrets.add(SECRET)
    assert secrets.is_in(f"Here is {FORMS[form]} for you".encode())


@pytest.mark.parametrize(
    "secret",
    ["J\u00f6rg M\u00fcller", "\u0422\u043e\u043c\u0430\u0441 \u0411\u0435\u0440\u0433", "\u5c71\u7530\u592a\u90ce\u306f\u6771\u4eac"],
)
def test_value_in_letters_of_the_world_is_found_encoded_too(secret: str) -> None:
    secrets = KnownSecrets()
    secrets.add(secret)
    written = [secret.upper(), base64.b64encode(f"x{secret}".encode()).decode(), quote(secret), json.dumps(secret), secret[::-1]]
    assert all(secrets.is_in(f"Here is {form} for you".encode()) for form in written)


def test_text_that_repeats_itself_is_looked_for_in_time_in_proportion() -> None:
    """Not at each of its places from each place of the message: that would take hours."""
    secrets = KnownSecrets(["0" * 50_000])
    secrets.add_text("0" * 50_000)
    secrets.add_text("\n".join(f"order 2026-{number:07}" for number in range(5_000)))
    assert not secrets.is_in(b"0" * 50_000 + b" order 2026-0" * 5_000)


def test_parts_of_a_long_text_are_found_and_what_is_public_anyway_is_not() -> None:
    secrets = KnownSecrets(["Do I have an appointment with Doctor Bergström on Monday?"])
    secrets.add_text(LONG)
    assert secrets.is_in(b"it says that the DIAGNOSIS is still pending, too")
    assert secrets.is_in(b"number ax4471992")
    assert not secrets.is_in("You have an appointment with Doctor Bergström on Monday".encode())
    assert not secrets.is_in(b"the diagnosis is done")


@given(st.text(alphabet="abcdefghijk 0123456789-ßÄ", min_size=60, max_size=300), st.data())
def test_every_long_enough_part_of_a_private_text_is_found(text: str, data: st.DataObject) -> None:
    secrets = KnownSecrets()
    secrets.add_text(text)
    start = data.draw(st.integers(0, len(text) - 60))
    part = text[start : start + 60]
    letters = sum(character.isalnum() for character in part)
    assert secrets.is_in(f"so: {part}!".encode()) or letters < 26


async def test_finding_keeps_the_task_on_the_device_unless_the_policy_says_otherwise() -> None:
    for findings, side in ((OnFinding.STAY, Side.NEAR), (OnFinding.PLACEHOLDER, Side.FAR), (OnFinding.ALLOW, Side.FAR)):
        near, far = pair()
        async with Hybrid(near=near, far=far, policy=public(findings)) as hybrid:
            result = await hybrid.run(f"Write to {SECRET}", **FAR)
        assert result.side is side
        assert (SECRET in str(far.requests)) == (findings is OnFinding.ALLOW)


async def test_error_says_what_looked_private_and_not_the_words() -> None:
    async with Hybrid(far=pair()[1], policy=public()) as hybrid:
        with pytest.raises(PrivacyViolation, match="1 email") as caught:
            await hybrid.run(f"Write to {SECRET}", **FAR)
    assert SECRET not in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize("findings", [OnFinding.STAY, OnFinding.PLACEHOLDER])
@pytest.mark.parametrize("detector", [Broken(), Endless()])
async def test_text_that_cannot_be_looked_through_stays(detector: Broken | Endless, findings: OnFinding) -> None:
    near, far = pair()
    privacy = RunPrivacy(PrivacyConfig(findings=findings, patience=0.05), [], detector=detector)
    request = StepRequest(messages=(Message.user("Hello"),), sensitivity=Sensitivity.PUBLIC)
    with pytest.raises(PrivacyViolation, match="could not be scanned"):
        await privacy.filter_request(AgentHandle("far", Side.FAR, far), request, Label(), role="execute")
    await privacy.filter_request(AgentHandle("near", Side.NEAR, near), request, Label(), role="execute")


def test_type_that_no_detector_finds_is_refused() -> None:
    with pytest.raises(ValidationError):
        PrivacyConfig.model_validate({"detect": ["emails"]})


async def test_gate_looks_through_each_text_once_and_counts_what_the_policy_names() -> None:
    looked: list[str] = []

    class Noted:
        def find(self, text: str) -> Sequence[PrivateFinding]:
            looked.append(text)
            return [PrivateFinding(0, 1, "email", text[0]), PrivateFinding(1, 2, "url", text[1])]

    scanner = OutboundScanner(Noted(), PrivacyConfig(detect=("url",)))
    found = await scanner.scan(["ab", "ab", "cd"])
    assert await scanner.scan(["cd"]) == {"cd": [PrivateFinding(1, 2, "url", "d")]}
    assert found == {"ab": [PrivateFinding(1, 2, "url", "b")], "cd": [PrivateFinding(1, 2, "url", "d")]}
    assert looked == ["ab", "cd"]


async def test_private_value_is_caught_in_the_bytes_that_are_sent_whoever_put_it_there() -> None:
    """An agent between the run and the connection that adds what it must not."""
    served = ScriptedAgent(["never reached"], name="far", side=Side.FAR)
    async with serve(served, "127.0.0.1:0") as server, aclosing(await RemoteAgent.connect(server.address)) as remote:
        privacy = RunPrivacy(PrivacyConfig(placeholders=True), [])
        privacy.placeholders.name_for(SECRET, "email", tier=Tier.USER, origin="test")
        member = AgentHandle("far", Side.FAR, remote)
        plain = StepRequest(messages=(Message.user("Hello"),), sensitivity=Sensitivity.PUBLIC)
        private = StepRequest(messages=(Message.user(base64.b64encode(LONG.encode()).decode()),), sensitivity=Sensitivity.PUBLIC)
        outbound = await privacy.filter_request(member, plain, Label(), role="execute")
        privacy.known_secrets.add_text(LONG)
        with outbound.inspect_bytes(), pytest.raises(PrivacyViolation, match="private data of this run"):
            await complete(remote, private)
    assert served.requests == []


async def test_value_that_is_cut_up_between_messages_is_found() -> None:
    privacy = RunPrivacy(PrivacyConfig(placeholders=True), [])
    privacy.known_secrets.add_text(SECRET + " " + LONG)
    half = len(LONG) // 2
    messages = (Message.user(LONG[half - 20 : half]), Message.assistant(LONG[half : half + 20]), Message.user("Go on"))
    request = StepRequest(messages=messages, sensitivity=Sensitivity.PUBLIC)
    with pytest.raises(PrivacyViolation, match="private data of this run"):
        await privacy.filter_request(AgentHandle("far", Side.FAR, pair()[1]), request, Label(), role="execute")


async def test_what_detectors_found_is_not_let_through_in_another_form_later() -> None:
    """The tool spells the address such that no detector knows it."""

    @tool(effect="read", source="internal_tool")
    def spell() -> str:
        """The address, letter by letter."""
        return "|".join(SECRET)

    def script(request: StepRequest) -> ToolCall | str:
        return ToolCall(id="1", name="spell", arguments={}) if len(request.messages) == 1 else "never reached"

    near, _ = pair()
    far = ScriptedAgent(script, name="far", side=Side.FAR)
    async with Hybrid(near=near, far=far, tools=[spell], policy=public(OnFinding.PLACEHOLDER)) as hybrid:
        result = await hybrid.run(f"Write to {SECRET}", **FAR)
    assert result.side is Side.NEAR
    assert len(far.requests) == 1


@pytest.mark.parametrize(
    ("detector", "text", "found"),
    [
        (EMAIL, f"to {SECRET}, and a@b", [SECRET]),
        (EMAIL, "no@no, @x.org, 5@", []),
        (CARD, "pay 4111 1111 1111 1111 or 4111-1111-1111-1112", ["4111 1111 1111 1111"]),
        (CARD, "0000000000000000", []),
        (IBAN, "from DE89 3704 0044 0532 0130 00, not from DE88370400440532013000", ["DE89 3704 0044 0532 0130 00"]),
    ],
)
def test_first_detectors_find_what_has_the_form_and_the_checksum(detector: Detectors, text: str, found: list[str]) -> None:
    findings = detector.find(text)
    assert [finding.text for finding in findings] == found
    assert all(text[finding.start : finding.end] == finding.text for finding in findings)


def test_composite_keeps_the_longest_of_what_overlaps_and_fails_closed() -> None:
    long, short, other = PrivateFinding(0, 9, "a", "x" * 9), PrivateFinding(2, 5, "b", "xxx"), PrivateFinding(9, 10, "c", "y")
    assert resolve([short, other, long]) == [long, other]
    assert Detectors([EMAIL, Broken()]).find("hello") == [PrivateFinding(0, 5, UNCHECKED, "hello")]


def test_checksums_reject_single_wrong_digits() -> None:
    assert passes_luhn("4111111111111111")
    assert not any(passes_luhn(f"411111111111111{digit}") for digit in "023456789")
    assert passes_iban("DE89370400440532013000")
    assert not any(passes_iban(f"DE8937040044053201300{digit}") for digit in "123456789")


async def test_what_goes_to_an_agent_on_another_device_is_looked_at_before_it_is_put_into_its_stream() -> None:
    seen: list[bytes] = []

    def refuse(message: bytes) -> None:
        seen.append(message)
        raise PrivacyViolation("it must not leave")

    registration = Registration(instance="1", cards=(pair()[0].card,), state=DeviceState())
    session = WorkerSession("laptop", registration, heartbeat=Heartbeat(interval=10.0, silence_limit=30.0), numbers=count(1))
    with inspected_by(refuse), pytest.raises(PrivacyViolation):
        session.start("near", StepRequest(messages=(Message.user(SECRET),)), idle_timeout=1.0)
    assert SECRET.encode() in seen[0]
    assert session.outbox.size == 0
