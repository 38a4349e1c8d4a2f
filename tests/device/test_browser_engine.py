"""`nearfar models web`: wllama is installed whole and as it was published, or not at all."""

from pathlib import Path

import pytest
from browser_tab import ARCHIVES

pytest.importorskip("httpx", reason="fetching is an extra: pip install 'nearfar[models]'")
from http_server import Exchange, http_server
from typer.testing import CliRunner

from nearfar.device.store import silent
from nearfar.device.store.browser_engine import VERSION, engine_folder, install_engine, require_engine
from nearfar.orchestrator.cli import app
from nearfar.protocols import ConfigError

NAMES = ("compat.js", "compat.wasm", "wllama.js", "wllama.wasm")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEARFAR_HOME", str(tmp_path / "home"))


def test_without_the_engine_the_command_is_named() -> None:
    with pytest.raises(ConfigError, match="not installed") as error:
        require_engine()
    assert error.value.hint == "nearfar models web"


def test_archives_in_a_folder_are_installed_without_a_network() -> None:
    if not (ARCHIVES / f"wllama-wllama-compat-{VERSION}.tgz").exists():
        pytest.skip("wllama is not here: run `make node`, or name a folder with its archives in NEARFAR_WLLAMA")
    result = CliRunner().invoke(app, ["models", "web", "--archives", str(ARCHIVES), "--json"])
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in engine_folder().iterdir()) == list(NAMES)
    assert (require_engine() / "wllama.wasm").read_bytes().startswith(b"\0asm")


def test_a_missing_archive_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"wllama-wllama-{VERSION}.tgz cannot be read") as error:
        install_engine(silent, tmp_path)
    assert error.value.hint == f"npm pack @wllama/wllama@{VERSION}"


def test_another_archive_under_its_name_is_refused(tmp_path: Path) -> None:
    archive = tmp_path / f"wllama-wllama-{VERSION}.tgz"
    archive.write_bytes(b"something else")
    with pytest.raises(ConfigError, match="wrong checksum"):
        install_engine(silent, tmp_path)
    assert archive.exists()
    assert list(engine_folder().iterdir()) == []


@pytest.mark.anyio
async def test_a_registry_that_sends_something_else_installs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    import anyio

    async def answer(exchange: Exchange) -> None:
        await exchange.respond(200, b"\0" * 5829483, content_type="application/octet-stream")

    async with http_server(answer) as server:
        monkeypatch.setenv("NPM_CONFIG_REGISTRY", server.base_url)
        with pytest.raises(ConfigError, match="wrong checksum"):
            await anyio.to_thread.run_sync(install_engine, silent)
    assert list(engine_folder().iterdir()) == []
