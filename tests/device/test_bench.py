"""Measuring a real model on this device, and what follows from it."""

import json
import shutil
from pathlib import Path

import pytest
from llama_engine import require_llama
from near_model import NEAR, ask, long_prompt, near_agent
from profile_examples import profile
from typer.testing import CliRunner

require_llama()

from nearfar import Hybrid, LlamaAgent, Policy
from nearfar.device.energy import Meter
from nearfar.device.profiles import REPEATS, WATTS_PER_THREAD, Profile, bench, profiles_of, save_profile
from nearfar.orchestrator.cli import app
from nearfar.orchestrator.compose import NearConfig
from nearfar.orchestrator.task.decisions import EstimateSource
from nearfar.protocols import EnergySource, complete

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def no_profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEARFAR_HOME", str(tmp_path / "home"))


async def measured(*, watts: float | None = None, context_tokens: int | None = None) -> tuple[Profile, list[tuple[int, int]]]:
    """The near model's profile, and the progress that was told."""
    told: list[tuple[int, int]] = []
    found = await bench(
        lambda: LlamaAgent.load(NEAR, context_tokens=context_tokens),
        NEAR,
        watts=watts,
        progress=lambda done, total: told.append((done, total)),
    )
    return found, told


async def test_a_bench_tells_speed_memory_and_power_and_how_it_knows() -> None:
    found, told = await measured()
    lengths = [pace.prompt_tokens for pace in found.prompts]
    assert lengths == [pytest.approx(length, rel=0.1) for length in (64, 256, 1024)]
    assert found.decode_tokens_per_second > 0
    assert found.kv_bytes_per_token == 4096
    assert found.memory_bytes > NEAR.stat().st_size
    assert told[-1] == (3 * REPEATS, 3 * REPEATS)
    assert (found.execution.engine, found.execution.provider) == ("llama.cpp", "cpu")
    if found.watts_source is EnergySource.ESTIMATED:  # Where the tests run on a machine that measures, it says so.
        assert found.watts == WATTS_PER_THREAD * (found.execution.threads or 0)


async def test_a_small_context_leaves_long_prompts_out() -> None:
    found, _ = await measured(context_tokens=400)
    assert len(found.prompts) == 2


async def test_a_counter_that_can_be_read_measures_the_power(monkeypatch: pytest.MonkeyPatch) -> None:
    class Steady:
        """25 W on the clock of the meter."""

        name = "steady"
        least_seconds = 0.0
        laps = 0

        def lap(self) -> float:
            self.laps += 1
            return 25.0

    now = iter(range(100))
    monkeypatch.setattr("nearfar.device.profiles.open_reader", lambda execution: Steady())
    monkeypatch.setattr("nearfar.device.profiles.Meter", lambda reader: Meter(reader, clock=lambda: float(next(now))))
    found, _ = await measured(watts=99.0, context_tokens=200)
    assert (found.watts, found.watts_source) == (25.0, EnergySource.MEASURED)


async def test_a_battery_is_looked_at_between_steps_and_not_only_before_and_after_all(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gauge:
        """Shows 5 W as long as nothing computes, and 25 W from then on."""

        name = "gauge"
        least_seconds = 0.0
        last: float | None = None

        def lap(self) -> float | None:
            last, self.last = self.last, 5.0 if self.last is None else 25.0
            return None if last is None else (last + self.last) / 2

    now = iter(range(100))
    monkeypatch.setattr("nearfar.device.profiles.open_reader", lambda execution: Gauge())
    monkeypatch.setattr("nearfar.device.profiles.Meter", lambda reader: Meter(reader, clock=lambda: float(next(now))))
    found, _ = await measured(context_tokens=200)
    assert found.watts == pytest.approx(25.0 - 10.0 / REPEATS)


async def test_a_step_of_a_model_with_a_profile_is_estimated_by_it() -> None:
    save_profile(profile(NEAR, watts=10.0, decode=50.0))
    async with near_agent() as agent:
        finished = (await complete(agent, ask(await long_prompt(), max_output_tokens=10))).finished
    performance = finished.performance
    assert performance is not None
    if performance.joules_source is EnergySource.MEASURED:
        pytest.skip("this machine measures")
    fresh = finished.usage.input_tokens - finished.usage.cached_tokens
    assert performance.joules == pytest.approx(10.0 * (fresh / 1000.0 + 10 / 50.0))
    assert performance.joules_source is EnergySource.ESTIMATED


async def test_the_router_expects_what_the_profile_says_before_the_first_step_and_what_was_seen_after_it() -> None:
    save_profile(profile(NEAR, watts=10.0, decode=50.0))
    policy = Policy.model_validate({"strategy": "device", "maximum_output_tokens": 8})
    async with Hybrid(near=NearConfig(), policy=policy) as hybrid:
        result = await hybrid.run("What is the mayor of Port Alder?")
        later = hybrid.explain_route("What is the mayor of Port Alder?").estimate_of("near")
    expected = result.decision.estimate_of("near")
    assert expected is not None
    assert expected.joules is not None
    assert {expected.seconds.source, expected.first_token_seconds.source, expected.joules.source} == {EstimateSource.PROFILE}
    assert expected.seconds.value == pytest.approx(300 / 50.0, rel=0.01)
    assert result.energy.joules is not None
    assert later is not None
    assert later.joules is not None
    assert later.joules.source is EstimateSource.MEASURED
    assert later.joules.value == pytest.approx(result.energy.joules)


async def test_a_joule_limit_that_the_profile_exceeds_keeps_the_model_from_being_loaded() -> None:
    save_profile(profile(NEAR, watts=1000.0, decode=1.0))
    policy = Policy.model_validate({"limits": {"task": {"joules": 100}}})
    async with Hybrid(near=NearConfig(), far="far", policy=policy) as hybrid:
        decision = hybrid.explain_route("What is the mayor of Port Alder?", sensitivity="public", strategy="route")
    assert decision.candidates == ("far",)
    assert any("joules" in reason for reason in decision.reasons)


async def test_a_profile_of_another_processor_is_not_expected_of_the_one_that_is_named() -> None:
    save_profile(profile(NEAR, provider="cuda"))
    async with Hybrid(near=NearConfig(compute="cpu")) as hybrid:
        estimate = hybrid.explain_route("What is the mayor of Port Alder?").estimate_of("near")
    assert estimate is not None
    assert estimate.seconds.source is EstimateSource.PRIOR


def test_the_command_keeps_what_it_prints(tmp_path: Path) -> None:
    model = tmp_path / "mine.gguf"
    shutil.copyfile(NEAR, model)
    result = CliRunner().invoke(app, ["models", "bench", str(model), "--watts", "12", "--json"])
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    path = Path(printed.pop("path"))
    assert Profile.model_validate(printed) == profiles_of(model)[0]
    assert path.is_relative_to(tmp_path / "home")
    assert profiles_of(NEAR), "the same model under another path"


def test_a_folder_for_onnxruntime_is_measured_alike(near_folder: Path) -> None:
    result = CliRunner().invoke(app, ["models", "bench", str(near_folder), "--json"])
    assert result.exit_code == 0, result.output
    assert [found.execution.engine for found in profiles_of(near_folder)] == ["onnxruntime-genai"]


def test_the_command_shows_a_table(tmp_path: Path) -> None:
    model = tmp_path / "model[b].gguf"
    model.symlink_to(NEAR)
    result = CliRunner().invoke(app, ["models", "bench", str(model)])
    assert result.exit_code == 0, result.output
    for words in ("model[b].gguf by llama.cpp", "tokens/s", "first token", "power", "kept in"):
        assert words in result.output


@pytest.mark.parametrize(
    "arguments", [["nowhere.gguf"], ["near", "--compute", "abacus"], ["near", "--compute", "No Such"], ["near", "--watts", "0"]]
)
def test_what_cannot_be_measured_is_an_error_that_says_why(arguments: list[str]) -> None:
    result = CliRunner().invoke(app, ["models", "bench", *arguments, "--json"])
    assert result.exit_code == 2
    assert json.loads(result.stdout)["error"]["hint"]
