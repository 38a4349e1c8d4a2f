"""`nearfar doctor` says where a key leaves this machine in plain text."""

import pytest

from nearfar.orchestrator.cli.doctor import plain_key_findings
from nearfar.orchestrator.compose.config import Config


def config(base_url: str | None, **fields: str) -> Config:
    far = {"provider": "openai", "model": "m", "base_url": base_url, **fields}
    return Config.model_validate({"far": {"provider": "llama", "model": "far"}, "other_far": {"cheap": far}})


def test_a_key_that_goes_to_another_machine_without_tls_is_risky() -> None:
    (finding,) = plain_key_findings(config("http://litellm:4000/v1", key_variable="LITELLM_API_KEY"))
    assert (finding.area, finding.name, finding.status) == ("keys", "[other_far.cheap]", "risky")
    assert "plain text" in finding.detail


@pytest.mark.parametrize(
    ("base_url", "fields"),
    [
        ("https://litellm.example/v1", {"key_variable": "LITELLM_API_KEY"}),
        ("http://127.0.0.1:4000/v1", {"key_variable": "LITELLM_API_KEY"}),
        ("http://litellm:4000/v1", {}),
        (None, {}),
    ],
)
def test_a_key_that_stays_or_is_encrypted_or_is_none_is_not(base_url: str | None, fields: dict[str, str]) -> None:
    assert list(plain_key_findings(config(base_url, **fields))) == []
