"""Commands of both sides where a server demands certificates of its clients, as processes."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from certificates import HOSTS, Authority
from typer.testing import CliRunner

from nearfar.orchestrator.cli import app
from nearfar.orchestrator.compose.config import load_config
from nearfar.orchestrator.lab.worlds.loading import SearchWorld

pytestmark = pytest.mark.timeout(120)

QUESTION = SearchWorld().tasks(1, 0)[0].prompt
DEMANDED = "demands a certificate of its clients, and this one has none"


@pytest.fixture(autouse=True)
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Authority:
    """An authority whose certificates for a server and a phone lie in the folder of the test."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "made").mkdir()
    made = Authority(tmp_path / "made")
    made.certificate.rename("authority.pem")
    for name, files in (("server", made.issue(*HOSTS)), ("phone", made.issue("phone"))):
        files[0].rename(f"{name}.pem")
        files[1].rename(f"{name}-key.pem")
    monkeypatch.delenv("NEARFAR_TOKEN", raising=False)
    return made


def nearfar(*arguments: str) -> dict[str, object]:
    """What a command prints with `--json`."""
    printed: dict[str, object] = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).stdout)
    return printed


@contextmanager
def started(*arguments: str) -> Iterator[dict[str, object]]:
    """The line that a command prints when it is ready; it runs on until the context ends."""
    command = [sys.executable, "-m", "nearfar", *arguments, "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())
        finally:
            process.kill()


TLS = ("--certificate", "server.pem", "--key", "server-key.pem", "--client-authority", "authority.pem", "--tokens", "tokens.toml")
OWN = ("--client-certificate", "phone.pem", "--client-key", "phone-key.pem")


def test_a_task_reaches_a_gateway_with_the_configured_certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEARFAR_TOKEN", str(nearfar("serve", "token", "add", "phone")["token"]))
    with started("serve", "gateway", "--far", "far", "--address", "127.0.0.1:0", *TLS) as gateway:
        far = f'[far]\nprovider = "gateway"\naddress = "{gateway["address"]}"\ncertificate = "authority.pem"\n'
        assert (gateway["tls"], gateway["token"], gateway["client_certificate"]) == (True, True, True)
        config, ask = tmp_path / "nearfar.toml", ("run", QUESTION, "--public", "--mode", "only_in_cloud", "--strategy", "cloud")
        config.write_text(far, encoding="utf-8")
        assert DEMANDED in str(nearfar(*ask)["error"])
        config.write_text(f'{far}client_certificate = "phone.pem"\n', encoding="utf-8")
        assert "belong together" in str(nearfar(*ask)["error"])
        config.write_text(f'{far}client_certificate = "phone.pem"\nclient_key = "phone-key.pem"\n', encoding="utf-8")
        assert nearfar(*ask)["side"] == "far"


def test_a_device_attaches_and_synchronises_with_its_certificate_alone(tmp_path: Path) -> None:
    nearfar("serve", "token", "add", "phone", "--certificate", "any", "--scope", "attach", "--scope", "memory")
    hub = 'address = "127.0.0.1:0"\ncertificate = "server.pem"\nkey = "server-key.pem"\nclient_authority = "authority.pem"\n'
    memory = '[memory]\npath = "{}.db"\nembed = false\n'
    phone = '[hub.workers.phone]\nuser = "ana"\n'
    (tmp_path / "hub.toml").write_text(
        f'{memory.format("hub")}[hub]\ntokens = "tokens.toml"\nmemory = true\n{hub}{phone}', encoding="utf-8"
    )
    with started("serve", "hub", "--config", "hub.toml") as announced:
        address = str(announced["address"])
        peer = f'[memory.peers.hub]\naddress = "{address}"\ncertificate = "authority.pem"\n'
        (tmp_path / "phone.toml").write_text(f'{memory.format("phone")}user = "ana"\n{peer}', encoding="utf-8")
        synchronise = ("memory", "sync", "hub", "--config", "phone.toml", "--yes")
        assert "NEARFAR_TOKEN is not set" in str(nearfar(*synchronise)["error"])
        assert DEMANDED in str(nearfar(*synchronise, "--token", "0123456789abcdef")["error"])
        assert "error" not in nearfar(*synchronise, *OWN)
        attach = ("worker", "attach", address, "--certificate", "authority.pem", "--near", "near", "--config", "phone.toml")
        with started(*attach, *OWN) as attached:
            assert attached == {"worker": "phone", "hub": address}


def test_one_certificate_is_revoked_by_taking_it_out_of_the_file(authority: Authority, tmp_path: Path) -> None:
    added = nearfar("serve", "token", "add", "phone", "--certificate", "phone.pem")
    with started("serve", "gateway", "--far", "far", "--address", "127.0.0.1:0", *TLS) as gateway:
        (tmp_path / "nearfar.toml").write_text(
            f'[far]\nprovider = "gateway"\naddress = "{gateway["address"]}"\ncertificate = "authority.pem"\n'
            'client_certificate = "phone.pem"\nclient_key = "phone-key.pem"\n',
            encoding="utf-8",
        )
        ask = ("run", QUESTION, "--public", "--mode", "only_in_cloud", "--strategy", "cloud")
        assert nearfar(*ask)["side"] == "far"
        other = authority.issue("phone")
        nearfar("serve", "token", "add", "phone", "--certificate", str(other[0]))
        assert nearfar("serve", "token", "revoke", "phone", "--id", str(added["id"]))["revoked"] == [added["id"]]
        assert _becomes(lambda: "gives no access" in str(nearfar(*ask).get("error")))
        for new, old in zip(other, ("phone.pem", "phone-key.pem"), strict=True):
            new.rename(old)
        assert nearfar(*ask)["side"] == "far"


def _becomes(condition: Callable[[], bool]) -> bool:
    """Whether it is true before long: a server looks at its files once a second."""
    return any(condition() for _ in range(100))


def test_files_of_certificates_are_relative_to_the_configuration(tmp_path: Path) -> None:
    own = 'certificate = "a.pem"\nclient_certificate = "b.pem"\nclient_key = "c.pem"\n'
    (tmp_path / "nearfar.toml").write_text(
        f'[far]\nprovider = "gateway"\naddress = "host:1"\n{own}[memory]\n[memory.peers.hub]\naddress = "host:1"\n{own}'
        '[hub]\nclient_authority = "d.pem"\n',
        encoding="utf-8",
    )
    config = load_config(tmp_path / "nearfar.toml")
    assert config.memory is not None
    assert config.hub is not None
    expected = [tmp_path / name for name in ("a.pem", "b.pem", "c.pem")]
    for section in (config.far, config.memory.peers["hub"]):
        assert [getattr(section, name) for name in ("certificate", "client_certificate", "client_key")] == expected
    assert config.hub.client_authority == tmp_path / "d.pem"


@pytest.mark.parametrize("kind", ["gateway", "agent", "hub"])
def test_certificates_of_clients_are_demanded_over_tls_only(kind: str) -> None:
    nearfar("serve", "token", "add", "phone")
    error = nearfar("serve", kind, "--address", "127.0.0.1:0", "--client-authority", "authority.pem", "--tokens", "tokens.toml")["error"]
    assert "belong together" in str(error)
