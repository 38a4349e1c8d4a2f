"""What `nearfar doctor` says of the certificates that a configuration names."""

from pathlib import Path

import pytest
from certificates import DAY, HOSTS, Authority

from nearfar.orchestrator.cli.doctor import certificate_findings
from nearfar.orchestrator.compose.config import Config


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path, end=1000 * DAY)


def test_each_certificate_is_looked_at(authority: Authority, tmp_path: Path) -> None:
    (certificate, key), (own, own_key) = authority.issue(*HOSTS, end=100 * DAY), authority.issue("phone", end=100 * DAY)
    client = {"address": "host:1", "certificate": authority.certificate, "client_certificate": own, "client_key": own_key}
    config = Config.model_validate(
        {
            "hub": {"certificate": certificate, "key": key, "client_authority": authority.certificate},
            "far": {"provider": "gateway", **client},
            "other_far": {"second": {"provider": "gateway", **client}},
            "memory": {"peers": {"hub": client}},
        }
    )
    findings = {finding.name: finding.status for finding in certificate_findings(config)}
    clients = ["[far]", "[other_far.second]", "[memory.peers.hub]"]
    names = ["[hub]", "[hub] client_authority", *clients, *(f"{name} certificate" for name in clients)]
    assert findings == dict.fromkeys(names, "ok")


@pytest.mark.parametrize(
    ("days", "status", "detail"),
    [(100, "ok", "expires on"), (5, "expiring", "expires on"), (-0.5, "broken", "expired on")],
)
def test_it_is_said_how_long_a_certificate_is_good(days: float, status: str, detail: str, authority: Authority) -> None:
    certificate, key = authority.issue(*HOSTS, begin=-100 * DAY, end=days * DAY)
    (finding,) = certificate_findings(Config.model_validate({"hub": {"certificate": certificate, "key": key}}))
    assert finding.status == status
    assert detail in finding.detail
    assert bool(finding.advice) == (status != "ok")


def test_files_that_cannot_be_used_are_broken(authority: Authority, tmp_path: Path) -> None:
    (certificate, _), (_, key) = authority.issue(*HOSTS), authority.issue(*HOSTS)
    hub = {"certificate": certificate, "key": key, "client_authority": tmp_path / "absent.pem"}
    findings = list(certificate_findings(Config.model_validate({"hub": hub})))
    assert [finding.status for finding in findings] == ["broken", "broken"]
    assert "does not belong" in findings[0].detail
    assert "absent.pem" in findings[1].detail


def test_the_certificate_of_a_hub_that_was_never_paired_is_absent(tmp_path: Path) -> None:
    hub = {"certificate": tmp_path / "hub.pem", "key": tmp_path / "hub-key.pem"}
    (finding,) = certificate_findings(Config.model_validate({"hub": hub}))
    assert finding.status == "absent"


def test_without_certificates_there_is_nothing_to_say() -> None:
    assert not list(certificate_findings(Config.model_validate({"hub": {}, "memory": {}})))
