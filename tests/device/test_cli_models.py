"""`nearfar models`, and configurations that name a model of the store."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from llama_engine import needs_llama
from typer.testing import CliRunner, Result

pytestmark = pytest.mark.usefixtures("wide_terminal")

pytest.importorskip("httpx", reason="fetching models needs httpx: pip install 'nearfar[models]'")
pytest.importorskip("gguf", reason="writes models: pip install 'nearfar[test]'")
from fake_hub import REPOSITORY, FakeHub, fake_hub
from near_model import NEAR

from nearfar.device.store import RESERVED
from nearfar.orchestrator.cli import app
from nearfar.orchestrator.compose import EMBEDDED, EMBEDDED_ADAPTERS, NearConfig, model_path, parse_far
from nearfar.orchestrator.compose.config import load_config
from nearfar.protocols import ConfigError, ModelNotFound

REFERENCE = f"hf:{REPOSITORY}:Q8_0"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with fake_hub() as hub:
        hub.files["model-Q8_0.gguf"] = NEAR.read_bytes()
        monkeypatch.setenv("NEARFAR_HOME", str(tmp_path / "home"))
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        monkeypatch.setenv("NEARFAR_MODEL_HOSTS", "localhost")
        for name in ("HF_TOKEN", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_TOKEN_PATH"):
            monkeypatch.delenv(name, raising=False)
        yield hub


def models(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["models", *arguments])


def printed(*arguments: str) -> dict[str, object]:
    result = models(*arguments, "--json")
    assert result.exit_code == 0, result.output
    value: dict[str, object] = json.loads(result.stdout)
    return value


@needs_llama
def test_a_model_is_pulled_listed_verified_run_and_removed(hub: FakeHub, tmp_path: Path) -> None:
    pulled = models("pull", REFERENCE)
    assert (pulled.exit_code, pulled.stdout.split()[0]) == (0, "model-Q8_0")
    listed = models("list").stdout
    assert all(name in listed for name in ("near", "far", "model-Q8_0", "ships with nearfar"))
    assert "ok" in models("verify").stdout
    for named in ("model-Q8_0", REFERENCE):
        arguments = ["run", "What is the mayor of Port Alder?", "--near", named, "--strategy", "device", "--json"]
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, result.output
    assert "deleted" in models("rm", "model-Q8_0").stdout
    assert not list((tmp_path / "hub").rglob("*.gguf"))


def test_every_command_speaks_json(hub: FakeHub) -> None:
    assert printed("pull", REFERENCE)["source"] == f"hf:{REPOSITORY}:model-Q8_0.gguf"
    assert printed("add", str(NEAR), "--name", "mine")["owned"] is False
    listed = printed("list")["models"]
    assert isinstance(listed, list)
    assert [model["name"] for model in listed] == ["near", "far", "mine", "model-Q8_0"]
    verified = printed("verify", "mine")["models"]
    assert isinstance(verified, list)
    assert [model["fault"] for model in verified] == [""]
    assert printed("rm", "mine")["deleted"] is False


def test_errors_name_what_to_do_and_have_exit_codes(hub: FakeHub) -> None:
    result = models("pull", f"hf:{REPOSITORY}:Q2_K", "--json")
    assert result.exit_code == 2
    assert json.loads(result.stdout)["error"] == {
        "type": "ModelNotFound",
        "message": f"hf:{REPOSITORY} has no 'Q2_K'",
        "hint": "there are Q8_0",
    }
    hub.claimed["model-Q8_0.gguf"] = "ab" * 32
    assert models("pull", REFERENCE).exit_code == 1
    assert "in quarantine" in models("list").stdout
    assert models("verify").exit_code == 1


def test_the_list_says_which_models_must_not_be_loaded(hub: FakeHub, tmp_path: Path) -> None:
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(NEAR.read_bytes())
    models("add", str(copy))
    assert "has changed" not in models("list").stdout
    copy.unlink()
    assert "has changed since it was checked" in " ".join(models("list").stdout.split())
    assert models("fit").exit_code == 0


def test_ctrl_c_keeps_what_was_fetched(hub: FakeHub, tmp_path: Path) -> None:
    hub.waits_after = 200_000
    command = [sys.executable, "-m", "nearfar", "models", "pull", REFERENCE]
    with subprocess.Popen(command, env=dict(os.environ), stderr=subprocess.PIPE, start_new_session=True, text=True) as process:
        assert hub.waiting.wait(60)
        until(lambda: sum(_partials(tmp_path)) > 0)
        process.send_signal(signal.SIGINT)
        hub.go_on.set()
        _, words = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "stopped" in words
    hub.waits_after, hub.asked[:] = None, []
    (fetched,) = _partials(tmp_path)
    assert models("pull", REFERENCE).exit_code == 0
    assert hub.ranges == [f"bytes={fetched}-"]


def _partials(folder: Path) -> list[int]:
    """Bytes that were fetched of each file that is not complete."""
    return [path.stat().st_size for path in folder.rglob(".incomplete/*") if path.suffix != ".lock"]


def until(holds: Callable[[], bool]) -> None:
    """Wait for another process."""
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_configuration_names_a_model_of_the_store(hub: FakeHub, tmp_path: Path) -> None:
    models("add", str(NEAR), "--name", "mine")
    models("pull", REFERENCE)
    for name in ("mine", REFERENCE):
        assert model_path(_configured(tmp_path, name)).read_bytes() == NEAR.read_bytes()
        assert parse_far(name).provider == "llama"


def test_a_configuration_that_names_what_is_not_there_is_told_so(hub: FakeHub, tmp_path: Path) -> None:
    assert _configured(tmp_path, "mine") == str(tmp_path / "mine"), "what is not in the store is a path"
    with pytest.raises(ModelNotFound) as raised:
        model_path(_configured(tmp_path, REFERENCE))
    assert f"nearfar models pull {REFERENCE}" in raised.value.hint
    with pytest.raises(ConfigError):
        parse_far("mine")
    assert hub.asked == []


def _configured(folder: Path, model: str) -> str:
    """What `[near] model` reads as."""
    file = folder / "nearfar.toml"
    file.write_text(f'[near]\nmodel = "{model}"\n', encoding="utf-8")
    near = load_config(file).near
    assert isinstance(near, NearConfig)
    return near.model


def test_no_stored_model_can_hide_behind_a_shipped_one() -> None:
    assert set(RESERVED) == {*EMBEDDED, *EMBEDDED_ADAPTERS}
