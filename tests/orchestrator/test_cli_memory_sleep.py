"""`nearfar memory sleep`: what people see of consolidation."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from nearfar import MemoryStore, Source
from nearfar.orchestrator.cli import app
from nearfar.orchestrator.memory.agent_memory import AgentMemory, Fact

pytestmark = pytest.mark.usefixtures("wide_terminal")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a configuration that searches by words alone, so that no test depends on a model."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NEARFAR_HOME", str(tmp_path / "home"))
    (tmp_path / "nearfar.toml").write_text("[memory]\nembed = false\n", encoding="utf-8")
    return tmp_path


@pytest.fixture
def store(home: Path) -> Iterator[MemoryStore]:
    """What somebody remembers who has moved."""
    with MemoryStore.open(home / "home" / "memory" / "memory.db", embedder=None) as store:
        facts = AgentMemory(store, ("assistant",)).facts
        facts.learn(Fact(about="Ann", attribute="home town", statement="Ann lives in Rome.", source=Source.USER))
        facts.learn(Fact(about="Ann", attribute="home_town", statement="Ann lives in Berlin.", source=Source.USER))
        yield store


def sleep(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["memory", "sleep", *arguments])


def told(*arguments: str) -> Any:  # noqa: ANN401 - whatever the command prints
    return json.loads(sleep(*arguments, "--json").stdout)


def statements(store: MemoryStore) -> set[str]:
    return {item.value["text"] for item in store.search(("assistant", "semantic"))}


def test_a_night_retires_what_is_outdated_and_can_be_taken_back(store: MemoryStore) -> None:
    ((slept,),) = [told("--now")]
    assert (slept["namespace"], slept["retired"]) == (["assistant"], 1)
    assert statements(store) == {"Ann lives in Berlin."}
    (batch,) = told("list")
    assert (batch["id"], batch["state"], batch["retired"]) == (slept["batch"], "open", 1)
    assert told("revert", slept["batch"])["reinstated"] == 1
    assert statements(store) == {"Ann lives in Rome.", "Ann lives in Berlin."}


def test_what_is_confirmed_can_not_be_taken_back(store: MemoryStore) -> None:
    (slept,) = told("--now")
    assert told("confirm", slept["batch"])["state"] == "confirmed"
    refused = sleep("revert", slept["batch"])
    assert refused.exit_code == 2
    assert "confirmed" in refused.stderr


def test_people_are_told_what_was_done_and_how_to_undo_it(store: MemoryStore) -> None:
    result = sleep("--now")
    assert "0 summaries made, 1 fact retired in assistant" in result.stdout
    assert "nearfar memory sleep revert" in result.stderr
    assert "nothing new" in sleep("--now").stderr


def test_a_device_that_is_not_charged_waits_and_says_why(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    from nearfar.orchestrator.cli import memory
    from nearfar.protocols import DeviceState, PowerSource

    monkeypatch.setattr(memory, "read_device_state", lambda: DeviceState(power_source=PowerSource.BATTERY, battery=0.2))
    result = sleep()
    assert "battery is at 20%" in result.stderr
    assert len(statements(store)) == 2


def test_a_batch_that_nobody_knows_is_an_error(store: MemoryStore) -> None:
    result = sleep("revert", "yesterday")
    assert result.exit_code == 2
    assert "there is no batch" in result.stderr
