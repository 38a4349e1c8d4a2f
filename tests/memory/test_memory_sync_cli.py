"""Two devices and a hub: `nearfar serve hub` as a process, and `nearfar memory sync` at the devices."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from nearfar.orchestrator.cache import AnswerCache
from nearfar.orchestrator.cli import app
from nearfar.orchestrator.task import TaskScope
from nearfar.orchestrator.task.stores import CacheConfig
from nearfar.protocols import AgentCard, Finished, FinishReason, Message, Sensitivity, Side, StepReply, StepRequest, Usage, security
from nearfar.protocols.token_file import add_token

pytestmark = pytest.mark.timeout(120)

DEVICES = ("laptop", "phone")


@pytest.fixture
def port() -> int:
    """One that was free a moment ago: the devices have to know it before the hub listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, port: int) -> Path:
    """A hub that knows two devices of Ana and one of Bob, and the configuration of each."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NEARFAR_TOKEN", raising=False)
    users = {"laptop": "ana", "phone": "ana", "tablet": "bob"}
    workers = "".join(f'[hub.workers.{name}]\nuser = "{user}"\n' for name, user in users.items())
    hub = f'[hub]\naddress = "127.0.0.1:{port}"\ntokens = "workers.toml"\nmemory = true\n{workers}[hub.workers.printer]\n'
    (tmp_path / "hub.toml").write_text(f'[memory]\npath = "hub.db"\nembed = false\n{hub}', encoding="utf-8")
    for name, user in (*users.items(), ("printer", "ana")):
        peer = f'[memory.peers.hub]\naddress = "127.0.0.1:{port}"\ntoken_variable = "TOKEN_OF_{name.upper()}"\n'
        memory = f'[memory]\npath = "{name}.db"\nuser = "{user}"\ntier = "user"\nembed = false\n{peer}'
        (tmp_path / f"{name}.toml").write_text(memory, encoding="utf-8")
        token = add_token(tmp_path / "workers.toml", name, scopes=[security.Scope.MEMORY]).token
        monkeypatch.setenv(f"TOKEN_OF_{name.upper()}", token)
    return tmp_path


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """What the hub keeps its memory in."""
    if request.param == "postgres":
        monkeypatch.setenv("HUB_DATABASE", request.getfixturevalue("postgres_database"))
        config = folder / "hub.toml"
        text = config.read_text(encoding="utf-8").replace('path = "hub.db"', 'postgres_variable = "HUB_DATABASE"')
        config.write_text(text, encoding="utf-8")
    return str(request.param)


@contextmanager
def hub() -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-m", "nearfar", "serve", "hub", "--config", "hub.toml", "--insecure", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, stderr=subprocess.DEVNULL, env=os.environ) as process:
        assert process.stdout is not None
        try:
            assert json.loads(process.stdout.readline())["memory"] is True
            yield process
        finally:
            process.kill()


def memory(device: str, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["memory", *arguments, "--config", f"{device}.toml"])


def told(device: str, *arguments: str) -> Any:  # noqa: ANN401 - whatever the command prints
    printed = memory(device, *arguments, "--json")
    return json.loads(printed.stdout)


def write(device: str, key: str, text: str, *options: str) -> None:
    told(device, "edit", "notes", key, "--set", f"text={text}", *options)


def sync(*devices: str) -> None:
    for device in devices:
        assert "error" not in told(device, "sync", "hub", "--yes")


def notes(device: str) -> dict[str, str]:
    return {item["key"]: item["value"]["text"] for item in told(device, "list", "--limit", "100")["items"]}


def files_with(folder: Path, text: str) -> list[str]:
    return [path.name for path in folder.iterdir() if path.is_file() and text.encode() in path.read_bytes()]


@pytest.mark.usefixtures("database")
def test_devices_that_were_apart_meet_decide_and_erase(folder: Path) -> None:
    write("laptop", "milk", "oat")
    write("laptop", "diary", "canary-of-the-laptop", "--tier", "device")
    write("phone", "nuts", "no peanuts")
    told("phone", "import", _about_bob(folder))
    _answered("phone", folder, "canary-of-bob")
    with hub() as process:
        sync("laptop", "phone", "laptop")
        assert notes("phone") == {"milk": "oat", "nuts": "no peanuts", "bob": "canary-of-bob"}
        assert notes("laptop") == {**notes("phone"), "diary": "canary-of-the-laptop"}
        _decide_what_was_written_apart()
        assert told("hub", "show", "notes", "bob")["item"]["subject"] == "bob"
        told("laptop", "erase", "--subject", "bob", "--yes")
        sync("laptop", "phone")
        assert "bob" not in notes("hub")
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    assert files_with(folder, "canary-of-bob") == []
    assert [name for name in files_with(folder, "canary-of-the-laptop") if not name.startswith("laptop.db")] == []


def _answered(device: str, folder: Path, text: str) -> None:
    """Let the device have a cache with this answer."""
    with (folder / f"{device}.toml").open("a", encoding="utf-8") as config:
        config.write('[cache]\npath = "answers.db"\nsemantic = false\n')
    cache = AnswerCache(CacheConfig(path=folder / "answers.db", semantic=False))
    asked = StepRequest(messages=(Message.user("Who is Bob?"),), sensitivity=Sensitivity.PUBLIC)
    lookup = cache.look(asked, AgentCard(name="far", side=Side.FAR, model="large"), TaskScope())
    finished = Finished(reason=FinishReason.STOP, usage=Usage(), model="large")
    assert cache.keep(lookup, StepReply(text=text, tool_calls=(), finished=finished), seconds=1.0, dollars=None)
    cache.close()


def _decide_what_was_written_apart() -> None:
    write("laptop", "milk", "soy")
    write("phone", "milk", "cow")
    sync("laptop", "phone", "laptop")
    (conflict,) = told("laptop", "conflicts")["conflicts"]
    kept = conflict["lost"][0]["value"]["text"]
    assert {conflict["present"]["value"]["text"], kept} == {"soy", "cow"}
    told("laptop", "conflicts", "notes", "milk", "--keep", "1")
    sync("laptop", "phone")
    assert notes("laptop")["milk"] == notes("phone")["milk"] == kept
    assert told("phone", "conflicts") == {"conflicts": []}


def _about_bob(folder: Path) -> str:
    """A file to import with an item about somebody."""
    write("printer", "bob", "canary-of-bob")
    record = json.loads(memory("printer", "export", "-").stdout)
    for path in folder.glob("printer.db*"):
        path.unlink()
    (folder / "about").mkdir()
    place = folder / "about" / "bob.jsonl"
    place.write_text(json.dumps({**record, "subject": "bob"}) + "\n", encoding="utf-8")
    return str(place)


def test_other_users_get_what_is_shared_and_nothing_else() -> None:
    write("laptop", "milk", "buy oat milk")
    write("laptop", "style", "short sentences", "--tier", "shared")
    with hub():
        sync("laptop", "tablet")
    assert notes("tablet") == {"style": "short sentences"}


def test_before_the_first_time_it_is_shown_what_would_leave(folder: Path) -> None:
    write("laptop", "milk", "buy oat milk")
    write("laptop", "diary", "secret", "--tier", "device")
    with hub():
        shown = memory("laptop", "sync", "hub", "--dry-run")
        assert "buy oat milk" in shown.stderr
        assert "secret" not in shown.stderr
        assert "stays here: 1 item of tier device" in shown.stderr
        (leaving,) = told("laptop", "sync", "hub", "--dry-run")["would_leave"]
        assert (leaving["namespace"], leaving["items"], leaving["held_back"]) == (["notes"], 1, 1)
        assert told("laptop", "sync", "hub")["error"]["hint"] == "add --yes, or --dry-run to look"
        assert files_with(folder, "buy oat milk") == ["laptop.db"]
        assert memory("laptop", "sync", "hub", "--yes").stdout == "sent 1 item, received 0 items: in sync\n"
        assert told("laptop", "sync")["sent"]["operations"] == 0


def test_device_that_is_shut_out_takes_no_part_any_more() -> None:
    write("laptop", "milk", "oat")
    write("phone", "nuts", "none")
    with hub():
        sync("laptop", "phone", "laptop")
        (phone,) = (one for one in told("laptop", "stats")["devices"] if not one["is_this"] and one["writes"] == 1)
        assert (phone["user"], phone["is_revoked"]) == ("ana", False)
        assert told("laptop", "revoke", phone["name"], "--yes") == {"revoked": phone["name"]}
        sync("laptop")
        assert told("phone", "sync", "hub")["error"]["type"] == "SyncRefused"
    assert "shut out" in memory("laptop", "stats").stdout
    assert notes("laptop") == {"milk": "oat", "nuts": "none"}
    assert told("laptop", "revoke", "nobody", "--yes")["error"]["type"] == "NotFound"


def test_who_has_no_part_in_the_memory_is_refused() -> None:
    with hub():
        assert told("printer", "sync", "hub", "--yes")["error"]["type"] == "PermissionDenied"
        assert told("laptop", "sync", "hub", "--yes", "--token", "a-wrong-token-0123456")["error"]["type"] == "Unauthenticated"
        assert told("laptop", "sync", "huub", "--yes")["error"]["type"] == "ConfigError"


def test_who_names_no_peer_is_told_how_to(folder: Path) -> None:
    (folder / "laptop.toml").write_text('[memory]\npath = "laptop.db"\nembed = false\n', encoding="utf-8")
    error = told("laptop", "sync")["error"]
    assert (error["type"], "''" in error["message"]) == ("ConfigError", False)
    assert "HOST:PORT" in error["hint"]


def test_without_a_hub_the_devices_work_on(monkeypatch: pytest.MonkeyPatch) -> None:
    write("laptop", "milk", "oat")
    assert told("laptop", "sync", "hub", "--yes")["error"]["type"] == "Unavailable"
    monkeypatch.delenv("TOKEN_OF_LAPTOP")
    assert "TOKEN_OF_LAPTOP" in told("laptop", "sync", "hub", "--yes")["error"]["hint"]
    assert notes("laptop") == {"milk": "oat"}


def test_a_hub_that_knows_no_user_of_a_device_says_where_to_name_them() -> None:
    with hub():
        error = told("printer", "sync", "hub", "--yes")["error"]
    assert "the hub has no user for printer" in error["message"]
    assert "[hub.workers.printer] user" in error["hint"]


def test_items_that_were_written_without_a_user_are_told_with_what_to_do(folder: Path) -> None:
    config = folder / "laptop.toml"
    whole = config.read_text(encoding="utf-8")
    config.write_text(whole.replace('user = "ana"\n', ""), encoding="utf-8")
    write("laptop", "milk", "oat")
    with hub():
        error = told("laptop", "sync", "hub", "--yes")["error"]
        assert error["type"] == "ConfigError"
        assert "[memory] user" in error["hint"]
        assert memory("laptop", "export", "all.jsonl").exit_code == 0
        config.write_text(whole.replace("laptop.db", "new.db"), encoding="utf-8")
        assert memory("laptop", "import", "all.jsonl").exit_code == 0
        sync("laptop")
        sync("phone")
    assert notes("phone") == {"milk": "oat"}


def test_items_that_stay_behind_are_counted_each_time(folder: Path) -> None:
    config = folder / "laptop.toml"
    config.write_text(config.read_text(encoding="utf-8").replace('tier = "user"', 'tier = "device"'), encoding="utf-8")
    write("laptop", "milk", "oat")
    with hub():
        for _ in range(2):
            assert told("laptop", "sync", "hub", "--yes")["stay_here"] == 1
        assert "1 item of tier device stay" in memory("laptop", "sync", "hub", "--yes").output
