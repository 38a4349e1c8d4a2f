"""`nearfar serve hub --web`: the pairing link of a browser, made once, with the token where no server sees it."""

from pathlib import Path
from urllib.parse import urlsplit

import pytest

pytest.importorskip("segno", reason="pairing draws QR codes: pip install 'nearfar[hub]'")
pytest.importorskip("websockets", reason="the page is an extra: pip install 'nearfar[serve]'")
from rich.text import Text

from nearfar.device.store.browser_engine import engine_folder
from nearfar.orchestrator.cli.worker import PagePlan, open_page, page_data, page_lines, plan_page
from nearfar.orchestrator.compose.hub import HubConfig
from nearfar.protocols import ConfigError, ModelNotFound
from nearfar.protocols.hub import Hub
from nearfar.protocols.security import Scope, token_digest
from nearfar.protocols.token_file import read_tokens

LOCAL = HubConfig(address="127.0.0.1:0", web_address="127.0.0.1:0")


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NEARFAR_HOME", str(tmp_path / "home"))
    engine_folder().mkdir(parents=True)
    for name in ("compat.js", "compat.wasm", "wllama.js", "wllama.wasm"):
        (engine_folder() / name).write_bytes(b"")


def plan(hub: HubConfig = LOCAL, device: str = "phone") -> PagePlan:
    return plan_page(hub, device, as_json=True)


@pytest.mark.anyio
async def test_the_link_holds_a_token_behind_the_hash() -> None:
    planned = plan()
    (record,) = read_tokens(Path("workers.toml"))
    assert (record.caller, record.scopes, record.digest) == ("phone", frozenset({Scope.ATTACH}), token_digest(planned.token))
    async with open_page(Hub(read_tokens(Path("workers.toml"))), planned, insecure=False) as link:
        parts = urlsplit(link)
        assert (parts.scheme, parts.hostname, parts.path, parts.query) == ("http", "127.0.0.1", "/", "")
        assert parts.fragment == f"token={planned.token}"
        assert page_data(planned, link) == {"web": link, "device": "phone", "model": "near"}
        assert Text(link) in list(page_lines(planned, link))


def test_a_device_is_paired_once() -> None:
    assert plan().token
    again = plan()
    assert again.token == ""
    assert "paired already" in str(next(page_lines(again, "http://127.0.0.1:7447/")))
    assert plan(device="tablet").token
    assert [record.caller for record in read_tokens(Path("workers.toml"))] == ["phone", "tablet"]


def test_other_devices_get_a_certificate_and_this_one_needs_none() -> None:
    assert plan().hub.certificate is None
    reached = plan(HubConfig(address="192.168.1.20:7445"), device="tablet")
    assert (reached.hub.certificate, reached.hub.key) == (Path("hub.pem"), Path("hub-key.pem"))
    assert Path("hub.pem").exists()
    assert reached.address == "192.168.1.20:7447"


def test_a_hub_that_demands_certificates_serves_no_page() -> None:
    with pytest.raises(ConfigError, match="client_authority"):
        plan(HubConfig(address="127.0.0.1:0", client_authority=Path("authority.pem")))
    assert not Path("workers.toml").exists()


def test_nothing_is_written_for_a_page_that_cannot_be_served() -> None:
    with pytest.raises(ModelNotFound):
        plan(HubConfig(address="127.0.0.1:0", web_model="/no/such.gguf"))
    (engine_folder() / "wllama.js").unlink()
    with pytest.raises(ConfigError, match="not installed"):
        plan()
    assert not Path("workers.toml").exists()
