"""Keys, prices and the configuration of provider agents."""

import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from typing import Any, Literal

import keyring
import keyring.errors
import pytest
from http_server import Exchange, http_server
from keyring.backend import KeyringBackend
from keyring.backends.fail import Keyring as NoKeyring
from pydantic import ValidationError
from streams import KEY, TEXTS, asking

from nearfar.cloud.config import ProviderConfig, build_provider
from nearfar.cloud.prices import price_of, reference_price
from nearfar.protocols import ConfigError, Prices, Side, Usage, complete
from nearfar.protocols.secrets import StoredKey

NO_KEYRING = NoKeyring()  # type: ignore[no-untyped-call]  # keyring is untyped here


class MemoryKeyring(KeyringBackend):
    """A keyring that lives in this process."""

    priority = -1  # never chosen by keyring itself, which looks at every backend that the process knows

    def __init__(self, entries: dict[tuple[str, str], str] | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # keyring is untyped here
        self.entries = entries

    def get_password(self, service: str, username: str) -> str | None:
        if self.entries is None:
            raise keyring.errors.KeyringLocked("locked")
        return self.entries.get((service, username))

    def set_password(self, service: str, username: str, password: str) -> None:
        raise NotImplementedError


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for variable in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "MY_KEY"):
        monkeypatch.delenv(variable, raising=False)
    before = keyring.get_keyring()
    keyring.set_keyring(MemoryKeyring({}))
    yield
    keyring.set_keyring(before)


def test_key_comes_from_the_environment_then_from_the_keyring(monkeypatch: pytest.MonkeyPatch) -> None:
    keyring.set_keyring(MemoryKeyring({("nearfar", "MY_KEY"): "from-keyring"}))
    assert StoredKey("MY_KEY").reveal() == "from-keyring"
    monkeypatch.setenv("MY_KEY", " from-environment\n")
    assert StoredKey("MY_KEY").reveal() == "from-environment"
    assert "from-environment" not in repr(StoredKey("MY_KEY"))


@pytest.mark.parametrize("backend", [MemoryKeyring({}), NO_KEYRING], ids=["empty keyring", "no keyring"])
def test_missing_key_says_which_variable_to_set(backend: KeyringBackend) -> None:
    keyring.set_keyring(backend)
    with pytest.raises(ConfigError, match="MY_KEY"):
        StoredKey("MY_KEY").reveal()


@pytest.mark.parametrize("backend", ["no.such.Backend", "json.NoBackend", "nodots"])
def test_a_keyring_of_settings_that_name_none_is_a_config_error(backend: str) -> None:
    code = "from nearfar.cloud.keys import StoredKey; StoredKey('MY_KEY').reveal()"
    environment = os.environ | {"PYTHON_KEYRING_BACKEND": backend}
    ended = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert "ConfigError: the keyring could not be read for MY_KEY" in ended.stderr


def test_locked_keyring_is_a_config_error() -> None:
    keyring.set_keyring(MemoryKeyring(None))
    with pytest.raises(ConfigError, match="unlock"):
        StoredKey("MY_KEY").reveal()


def test_key_that_no_header_can_carry_is_a_config_error_without_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "sécret")
    with pytest.raises(ConfigError) as caught:
        StoredKey("MY_KEY").reveal()
    assert "sécret" not in str(caught.value)


@pytest.mark.anyio
async def test_key_is_read_by_the_first_step_and_not_before(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = build_provider(ProviderConfig(provider="openai", model="gpt-6-luna"))
    with pytest.raises(ConfigError, match="OPENAI_API_KEY"):
        await complete(agent, asking())
    await agent.aclose()


@pytest.mark.anyio
@pytest.mark.parametrize("variable", [None, "MY_KEY"])
async def test_own_endpoint_never_gets_the_providers_usual_key(variable: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("MY_KEY", "mine")

    async def answer(exchange: Exchange) -> None:
        await exchange.stream([TEXTS["openai"]("hi")])

    async with http_server(answer) as server:
        agent = build_provider(ProviderConfig(provider="openai", model="m", base_url=server.base_url, key_variable=variable))
        await complete(agent, asking())
        await agent.aclose()
    assert server.exchanges[0].headers.get("authorization") == ("Bearer mine" if variable else None)


def test_card_states_what_is_configured() -> None:
    card = build_provider(ProviderConfig(provider="anthropic", model="claude-sonnet-5-5", name="far", context_tokens=1000)).card
    assert (card.name, card.side, card.limits.context_tokens) == ("far", Side.FAR, 1000)
    assert card.prices == price_of("anthropic", "claude-sonnet-5-5")
    assert not card.capabilities.confidence
    local = build_provider(
        ProviderConfig(provider="openai", model="gpt-6-luna", base_url="http://127.0.0.1:1/v1", logprobs=True, tools=False)
    ).card
    assert local.prices is not None
    assert local.prices.is_free, "nobody is paid for a server on this machine"
    assert (local.capabilities.confidence, local.capabilities.tools) == (True, False)


@pytest.mark.parametrize(
    "wrong",
    [
        {"provider": "other"},
        {"model": ""},
        {"base_url": "localhost:11434"},
        {"base_url": "https://user:password@host/v1"},
        {"base_url": "https://host/v1?key=secret"},
        {"base_url": "https://host/v1#models"},
        {"base_url": " https://host/v1"},
        {"base_url": "https://my host/v1"},
        {"base_url": "https://host:99999/v1"},
        {"base_url": "https://user:password"},
        {"base_url": "https://[host/v1"},
        {"provider": "gemini", "logprobs": True},
        {"provider": "anthropic", "json_schema": "llama"},
        {"api_key": KEY},
        {"key_variable": "sk-looks-like-a-key"},
        {"max_calls": 0},
        {"idle_timeout": -1},
    ],
)
def test_wrong_configuration_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        ProviderConfig.model_validate({"provider": "openai", "model": "m", **wrong})
    assert not any(secret in str(caught.value) for secret in (KEY, "sk-looks", "password", "key=secret"))


@pytest.mark.parametrize(
    "path",
    ["/chat/completions", "/v1/chat/completions/", "/v1/responses", "/v1/messages", "/v1beta/models/gemini-3-pro:streamGenerateContent"],
)
def test_an_endpoint_in_place_of_the_root_is_refused_with_what_to_leave_out(path: str) -> None:
    with pytest.raises(ValidationError, match="leave out /"):
        ProviderConfig(provider="openai", model="m", base_url=f"https://models.example.com{path}")


def test_known_price_has_a_source_and_a_date() -> None:
    prices = price_of("anthropic", "claude-opus-5-5")
    assert prices is not None
    assert prices.source.startswith("https://")
    assert prices.as_of >= date(2026, 1, 1)
    million = 10**6
    assert prices.dollars(Usage(input_tokens=2 * million, cached_tokens=million, output_tokens=million)) == Decimal("24.2")


@pytest.mark.parametrize("model", ["gpt-6-luna-2026-09-22", "gpt-6", "GPT-6-luna", "", "claude-opus-5-5"])
def test_model_that_the_table_does_not_name_has_no_price(model: str) -> None:
    assert price_of("openai", model) is None


def test_price_is_unknown_after_its_last_day() -> None:
    assert price_of("gemini", "gemini-3.8-flash", on=date(2026, 12, 31)) is not None
    assert price_of("gemini", "gemini-3.8-flash", on=date(2027, 1, 1)) is None


def test_reference_price_names_a_real_model() -> None:
    model, prices = reference_price()
    assert prices == price_of("anthropic", model)


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST", "127.0.0.1", "127.8.8.8", "[::1]", "0.0.0.0", "[::]"])
@pytest.mark.parametrize("provider", ["openai", "anthropic", "gemini"])
def test_server_on_this_machine_is_free_unless_prices_are_stated(provider: Literal["openai", "anthropic", "gemini"], host: str) -> None:
    address = f"http://{host}:8080/v1"
    free = build_provider(ProviderConfig(provider=provider, model="m", base_url=address)).card.prices
    assert free is not None
    assert free.dollars(Usage(input_tokens=10**6, output_tokens=10**6, cached_tokens=10)) == 0
    stated = Prices(input=Decimal(1), output=Decimal(2), source="a proxy", as_of=date(2026, 11, 1))
    assert build_provider(ProviderConfig(provider=provider, model="m", base_url=address, prices=stated)).card.prices == stated


@pytest.mark.parametrize("host", ["gpu-box", "192.168.1.7", "localhost.example.com"])
def test_price_of_a_server_elsewhere_is_unknown(host: str) -> None:
    config = ProviderConfig(provider="openai", model="gpt-6-luna", base_url=f"http://{host}:8080/v1")
    assert build_provider(config).card.prices is None


def test_importing_the_cloud_does_not_import_what_only_steps_need() -> None:
    code = "import sys, nearfar.cloud; print(*(m for m in ('httpx', 'keyring', 'grpc') if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == ""
