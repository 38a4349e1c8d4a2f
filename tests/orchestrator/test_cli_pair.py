"""`nearfar worker pair`: token, certificate and QR code of a device."""

import json
import ssl
import stat
import sys
from pathlib import Path

import anyio
import pytest
from typer.testing import CliRunner, Result

pytest.importorskip("segno", reason="pairing draws QR codes: pip install 'nearfar[hub]'")
import segno

from nearfar.orchestrator.cli import app, running
from nearfar.orchestrator.cli.worker import qr_code
from nearfar.protocols import ConfigError
from nearfar.protocols.address import Pairing, fingerprint_of, parse_pairing
from nearfar.protocols.hub import Hub, serve_hub
from nearfar.protocols.security import Scope, token_digest
from nearfar.protocols.tls import ServerTls, ensure_certificate
from nearfar.protocols.token_file import read_tokens

ADDRESS = "192.168.1.20:7445"
URI = Pairing(address=ADDRESS, token="5f" * 32, fingerprint="sha256:" + "0a" * 32, name="telephone").uri


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def pair(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["worker", "pair", *arguments])


def test_a_pairing_holds_address_token_and_fingerprint(tmp_path: Path) -> None:
    result = pair("phone", "--address", ADDRESS, "--json")
    assert result.exit_code == 0, result.output
    said = json.loads(result.stdout)
    pairing = parse_pairing(said["uri"])
    (record,) = read_tokens(tmp_path / "workers.toml")
    certificate = (tmp_path / "hub.pem").read_text(encoding="ascii")
    assert (pairing.address, pairing.name, token_digest(pairing.token)) == (ADDRESS, record.caller, record.digest)
    assert record.scopes == {Scope.ATTACH, Scope.MEMORY}
    assert pairing.fingerprint == said["fingerprint"] == fingerprint_of(ssl.PEM_cert_to_DER_cert(certificate))


def test_what_is_secret_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    pair("phone", "--address", ADDRESS, "--json")
    for name in ("workers.toml", "hub-key.pem"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600


def test_a_second_device_gets_a_token_of_its_own_and_the_same_certificate() -> None:
    first, second = (parse_pairing(json.loads(pair(name, "--address", ADDRESS, "--json").stdout)["uri"]) for name in ("phone", "tablet"))
    assert first.token != second.token
    assert first.fingerprint == second.fingerprint


def test_a_device_is_not_paired_twice_by_accident() -> None:
    pair("phone", "--address", ADDRESS, "--json")
    result = pair("phone", "--address", ADDRESS, "--json")
    assert result.exit_code == 2
    assert json.loads(result.stdout)["error"]["type"] == "ConfigError"


def test_the_terminal_shows_the_code_the_line_and_the_command() -> None:
    result = pair("phone", "--address", ADDRESS)
    assert result.exit_code == 0, result.output
    assert f"nearfar://{ADDRESS}?token=" in result.stdout
    assert "\N{FULL BLOCK}" in result.stdout
    assert "python -m nearfar.device.thin_worker --pairing-file -" in result.stderr
    assert "nearfar worker attach --pairing-file -" in result.stderr


def test_a_narrow_terminal_gets_the_line_without_a_broken_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running.output, "_width", 40)
    result = pair("phone", "--address", ADDRESS)
    assert "\N{FULL BLOCK}" not in result.stdout
    assert "needs a terminal of" in result.stderr
    assert f"nearfar://{ADDRESS}?token=" in result.stdout


def test_the_configuration_says_what_the_command_line_does_not(tmp_path: Path) -> None:
    hub = f'[hub]\naddress = "{ADDRESS}"\ntokens = "devices.toml"\ncertificate = "own.pem"\nkey = "own-key.pem"\n'
    (tmp_path / "nearfar.toml").write_text(hub, encoding="utf-8")
    result = pair("phone", "--json", "--key", "other-key.pem")
    assert json.loads(result.stdout)["address"] == ADDRESS
    assert {path.name for path in tmp_path.iterdir()} == {"nearfar.toml", "devices.toml", "own.pem", "other-key.pem"}


def test_an_address_that_no_device_can_reach_is_pointed_out() -> None:
    result = pair("phone", "--address", "127.0.0.1:7445")
    assert "only this machine can reach" in result.stderr


def test_a_hub_on_a_unix_socket_cannot_be_paired() -> None:
    result = pair("phone", "--address", "unix:/tmp/hub.sock", "--json")
    assert result.exit_code == 2


@pytest.mark.anyio
async def test_a_computer_attaches_with_the_same_pairing(tmp_path: Path) -> None:
    pytest.importorskip("llguidance", reason="running models needs an engine: pip install 'nearfar[onnx]'")
    made = ensure_certificate(tmp_path / "hub.pem", tmp_path / "hub-key.pem", [])
    hub = Hub({"laptop": "5f" * 32})
    tls = ServerTls(certificate=tmp_path / "hub.pem", private_key=tmp_path / "hub-key.pem")
    async with serve_hub(hub, "127.0.0.1:0", tls=tls) as address:
        pairing = Pairing(address=address, token="5f" * 32, fingerprint=made, name="laptop")
        command = (sys.executable, "-m", "nearfar", "worker", "attach", "--pairing-file", "-", "--json")
        process = await anyio.open_process(command, stderr=None)
        async with process:
            assert process.stdin is not None
            await process.stdin.send(pairing.uri.encode() + b"\n")
            with anyio.fail_after(60):
                attached = await hub.wait_for("laptop")
            process.terminate()
    assert attached.card.name == "laptop"


def test_the_code_fits_into_80_columns_and_is_black_on_white_everywhere() -> None:
    code = qr_code(URI)
    lines = code.plain.split("\n")
    assert {len(line) for line in lines} == {len(lines[0])}
    assert len(lines[0]) <= 80
    assert str(code.style) == "#000000 on #ffffff"


def test_every_module_of_the_code_is_drawn() -> None:
    """Two modules to a character; the drawing is taken apart again."""
    upper, lower = "\N{UPPER HALF BLOCK}\N{FULL BLOCK}", "\N{LOWER HALF BLOCK}\N{FULL BLOCK}"
    drawn = [[character in half for character in line] for line in qr_code(URI).plain.split("\n") for half in (upper, lower)]
    modules = [[bool(module) for module in row] for row in segno.make(URI, error="l", micro=False).matrix_iter(border=4)]
    assert drawn[: len(modules)] == modules
    assert not any(any(row) for row in drawn[len(modules) :])


def test_half_of_a_pair_of_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "hub.pem").touch()
    with pytest.raises(ConfigError, match="belong together"):
        ensure_certificate(tmp_path / "hub.pem", tmp_path / "hub-key.pem", [])


def test_a_file_that_is_no_certificate_is_refused(tmp_path: Path) -> None:
    for name in ("hub.pem", "hub-key.pem"):
        (tmp_path / name).write_text("no certificate", encoding="ascii")
    with pytest.raises(ConfigError, match="not a certificate"):
        ensure_certificate(tmp_path / "hub.pem", tmp_path / "hub-key.pem", [])
