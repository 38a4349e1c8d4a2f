"""What is kept of a model's measurements, and which of it is found again."""

import logging
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from profile_examples import profile

from nearfar.device.profiles import Profile, profile_of, profiles_of, save_profile, speeds_of
from nearfar.protocols import Execution


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"weights")
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state" / "profiles"


def test_a_saved_profile_is_found_as_it_was(model: Path, folder: Path) -> None:
    saved = profile(model)
    save_profile(saved, folder)
    assert profiles_of(model, folder) == [saved]
    assert [path.suffix for path in folder.iterdir()] == [".json"], "nothing half-written is left"


def test_a_second_measurement_replaces_the_first(model: Path, folder: Path) -> None:
    save_profile(profile(model, decode=10.0), folder)
    save_profile(profile(model, decode=20.0), folder)
    assert [found.decode_tokens_per_second for found in profiles_of(model, folder)] == [20.0]


def test_each_processor_has_a_profile_and_the_fastest_comes_first(model: Path, folder: Path) -> None:
    for provider, decode in (("cpu", 10.0), ("cuda", 90.0), ("vulkan", 60.0)):
        save_profile(profile(model, provider=provider, decode=decode), folder)
    assert [found.execution.provider for found in profiles_of(model, folder)] == ["cuda", "vulkan", "cpu"]


def test_another_device_s_profile_is_not_this_one_s(model: Path, folder: Path) -> None:
    save_profile(profile(model, device="another processor, 64 cores"), folder)
    assert profiles_of(model, folder) == []


def test_a_model_that_was_moved_is_known_and_one_that_was_replaced_is_not(model: Path, folder: Path, tmp_path: Path) -> None:
    save_profile(profile(model), folder)
    moved = model.rename(tmp_path / "moved.gguf")
    os.utime(moved, ns=(1, 1))
    assert len(profiles_of(moved, folder)) == 1
    moved.write_bytes(b"WEIGHTS")
    assert profiles_of(moved, folder) == []


def test_a_folder_is_a_model_too(folder: Path, tmp_path: Path) -> None:
    model = tmp_path / "onnx"
    model.mkdir()
    for name in ("model.onnx", "genai_config.json"):
        (model / name).write_text(name, encoding="utf-8")
    save_profile(profile(model), folder)
    assert len(profiles_of(model, folder)) == 1
    (model / "model.onnx").write_text("MODEL.ONNX", encoding="utf-8")
    assert profiles_of(model, folder) == []


def test_a_damaged_profile_is_passed_over_and_named(model: Path, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    kept = save_profile(profile(model), folder)
    (folder / "torn.json").write_text('{"device": ', encoding="utf-8")
    with caplog.at_level(logging.WARNING):
        assert len(profiles_of(model, folder)) == 1
    assert "torn.json" in caplog.text
    assert kept.name not in caplog.text


def test_without_profiles_or_without_the_model_none_is_found(model: Path, folder: Path) -> None:
    assert profiles_of(model, folder) == []
    save_profile(profile(model), folder)
    model.unlink()
    assert profiles_of(model, folder) == []


def test_the_profile_of_a_run_is_that_of_its_processor(model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NEARFAR_HOME", str(tmp_path / "home"))
    save_profile(profile(model, provider="cuda"))
    assert profile_of(model, Execution(engine="llama.cpp", provider="cuda")) is not None
    assert profile_of(model, Execution(engine="llama.cpp", provider="cpu")) is None
    assert profile_of(model, None) is None


def test_each_card_has_a_profile_of_its_own(model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NEARFAR_HOME", str(tmp_path / "home"))
    for card, decode in (("fast card", 90.0), ("slow card", 30.0)):
        save_profile(profile(model, provider="cuda", decode=decode, card=card))
    found = profile_of(model, Execution(engine="llama.cpp", provider="cuda", device="slow card"))
    assert found is not None
    assert found.decode_tokens_per_second == 30.0
    assert profile_of(model, Execution(engine="llama.cpp", provider="cuda", device="new card")) is None
    assert speeds_of(model) == {"cuda": 90.0}


def test_energy_is_power_times_the_time_of_prompt_and_output(model: Path) -> None:
    known = profile(model)
    assert known.first_token_seconds(100) == pytest.approx(0.1), "64 tokens are nearer than 1024"
    assert known.first_token_seconds(2000) == pytest.approx(4.0)
    assert known.seconds(100, 50) == pytest.approx(0.1 + 1.0)
    assert known.joules(100, 50) == pytest.approx(11.0)
    assert profile(model, watts=None).joules(100, 50) is None


@given(prompt=st.integers(0, 1_000_000), output=st.integers(0, 100_000))
def test_more_output_never_takes_less(example: Profile, prompt: int, output: int) -> None:
    assert 0 <= example.seconds(prompt, output) <= example.seconds(prompt, output + 1)


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Profile:
    path = tmp_path_factory.mktemp("example") / "model.gguf"
    path.write_bytes(b"weights")
    return profile(path)
