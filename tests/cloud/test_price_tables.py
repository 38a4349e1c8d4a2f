"""The shipped price table, and LiteLLM's public table read from a file."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pytest

from nearfar.cloud.config import ProviderConfig, build_provider
from nearfar.cloud.prices import imported_path, keep_imported, price_lines, price_of, read_public_table
from nearfar.protocols import ConfigError, LongPrompt

DAY = date(2026, 10, 21)
CLAUDE = {
    "litellm_provider": "anthropic",
    "mode": "chat",
    "input_cost_per_token": 3e-06,
    "output_cost_per_token": 1.5e-05,
    "cache_read_input_token_cost": 3e-07,
    "cache_creation_input_token_cost": 3.75e-06,
    "input_cost_per_token_above_200k_tokens": 6e-06,
    "output_cost_per_token_above_200k_tokens": 2.25e-05,
    "cache_read_input_token_cost_above_200k_tokens": 6e-07,
    "cache_creation_input_token_cost_above_200k_tokens": 7.5e-06,
}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NEARFAR_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def table(tmp_path: Path, content: object) -> Path:
    path = tmp_path / "table.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def test_every_shipped_price_has_a_source_and_a_past_date() -> None:
    lines = list(price_lines())
    today = datetime.now(UTC).date()
    assert len(lines) >= 60
    assert all(line.source.startswith("https://") and line.as_of <= today for line in lines)
    ids = [(line.provider, name) for line in lines for name in (line.model, *line.aliases)]
    assert len(set(ids)) == len(ids), "a model has one price"


def test_every_claude_has_a_price_for_stored_tokens_above_that_of_input() -> None:
    lines = [line for line in price_lines() if line.provider == "anthropic"]
    assert lines
    assert all(line.cache_write is not None and line.cache_write > line.input for line in lines)


def test_long_prompts_of_gemini_pro_cost_more() -> None:
    prices = price_of("gemini", "gemini-2.5-pro", on=DAY)
    assert prices is not None
    assert (prices.rates(200_000).input, prices.rates(200_001).input) == (Decimal("1.25"), Decimal("2.50"))


def test_known_hosts_have_the_prices_of_their_models() -> None:
    def prices(address: str) -> object:
        return build_provider(ProviderConfig(provider="openai", model="grok-4.5", base_url=address)).card.prices

    assert prices("https://api.x.ai/v1") == price_of("xai", "grok-4.5")
    assert prices("https://api.x.ai.example.com/v1") is None
    assert prices("https://api.mistral.ai/v1") is None


def test_public_table_is_read_with_stored_tokens_and_long_prompts(tmp_path: Path) -> None:
    found = read_public_table(table(tmp_path, {"claude-x": CLAUDE}), source="a copy", as_of=DAY)
    (line,) = found
    long = LongPrompt(above=200_000, input=Decimal(6), output=Decimal("22.5"), cached_input=Decimal("0.6"), cache_write=Decimal("7.5"))
    found_prices = (line.input, line.output, line.cached_input, line.cache_write)
    assert found_prices == (Decimal(3), Decimal(15), Decimal("0.3"), Decimal("3.75"))
    assert line.long_prompts == (long,)
    assert (line.provider, line.model, line.source, line.as_of) == ("anthropic", "claude-x", "a copy", DAY)


def test_imported_prices_stand_before_shipped_ones_and_come_back_exactly(tmp_path: Path, home: Path) -> None:
    shipped = price_of("anthropic", "claude-sonnet-5-5")
    lines = read_public_table(table(tmp_path, {"claude-sonnet-5-5": CLAUDE}), source="a copy", as_of=DAY)
    assert keep_imported(lines) == home / "prices.json"
    assert price_of("anthropic", "claude-sonnet-5-5") == lines[0].prices != shipped
    assert price_of("anthropic", "claude-opus-5-5") is not None


def test_models_of_unknown_providers_and_other_modes_are_left_out(tmp_path: Path) -> None:
    others = {"sample_spec": {"mode": "one of"}, "a": CLAUDE | {"litellm_provider": "bedrock"}, "b": CLAUDE | {"mode": "embedding"}}
    with pytest.raises(ConfigError, match="names no text model"):
        read_public_table(table(tmp_path, others), source="a copy", as_of=DAY)
    assert len(read_public_table(table(tmp_path, {**others, "c": CLAUDE}), source="a copy", as_of=DAY)) == 1


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "is not JSON"),
        ([], "no JSON object"),
        ({"claude-x": 3}, "'claude-x' is not an object"),
        ({"claude-x": CLAUDE | {"input_cost_per_token": -1}}, "'claude-x' is wrong: input"),
        ({"claude-x": CLAUDE | {"output_cost_per_token": "much"}}, "'claude-x' is wrong: output"),
        ({"claude-x": CLAUDE | {"output_cost_per_token": None}}, "'claude-x' is wrong: output"),
        ({"claude-x": CLAUDE | {"input_cost_per_token_above_200k_tokens": None}}, "long_prompts.0.input"),
        ({"claude-x": CLAUDE | {"input_cost_per_token": True}}, "'claude-x' is wrong: input"),
        ({"claude-x": CLAUDE | {"deprecation_date": "soon"}}, "'claude-x' is wrong: until"),
        ('{"claude-x": {"litellm_provider": "anthropic", "mode": "chat", "input_cost_per_token": NaN}}', "'claude-x' is wrong: input"),
    ],
)
def test_a_wrong_table_is_refused_with_the_place(tmp_path: Path, content: object, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        read_public_table(table(tmp_path, content), source="a copy", as_of=DAY)
    assert caught.value.hint


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_public_table(tmp_path / "none.json", source="a copy", as_of=DAY)


def test_damaged_imported_prices_are_an_error_and_not_unknown_prices(home: Path) -> None:
    home.mkdir()
    imported_path().write_text("{", encoding="utf-8")
    with pytest.raises(ConfigError, match="imported prices"):
        price_of("anthropic", "claude-sonnet-5-5")
