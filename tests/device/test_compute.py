"""The choice of what to compute on."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearfar.device.hardware.processors import FASTEST, LOWEST_POWER, ProcessorKind, Provider, choose_provider
from nearfar.protocols import ConfigError

CPU = Provider(name="cpu", kind=ProcessorKind.CPU)
CUDA = Provider(name="cuda", kind=ProcessorKind.GPU)
VULKAN = Provider(name="vulkan", kind=ProcessorKind.INTEGRATED_GPU)
QNN = Provider(name="qnn", kind=ProcessorKind.NPU)
NEW = Provider(name="zdnn", kind=ProcessorKind.GPU)
ALL = [CPU, VULKAN, NEW, QNN, CUDA]


@pytest.mark.parametrize(
    ("present", "wanted", "chosen"),
    [
        (ALL, FASTEST, CUDA),
        ([CPU, VULKAN], FASTEST, VULKAN),
        ([CPU, QNN], FASTEST, QNN),
        ([CPU, NEW], FASTEST, NEW),
        ([CPU], FASTEST, CPU),
        (ALL, LOWEST_POWER, QNN),
        ([CUDA, CPU, VULKAN], LOWEST_POWER, VULKAN),
        ([CUDA, CPU], LOWEST_POWER, CPU),
        (ALL, "vulkan", VULKAN),
        (ALL, "cpu", CPU),
    ],
)
def test_the_policy_decides_among_what_is_present(present: list[Provider], wanted: str, chosen: Provider) -> None:
    assert choose_provider(present, wanted).provider == chosen


def test_measured_speed_goes_before_expected_speed() -> None:
    choice = choose_provider(ALL, FASTEST, tokens_per_second={"cpu": 210.0, "cuda": 95.0})
    assert choice.provider == CPU
    assert "measured" in choice.reason


@pytest.mark.parametrize("tokens_per_second", [{"cpu": 210.0}, {"cpu": 210.0, "metal": 400.0}])
def test_one_measured_figure_is_no_comparison(tokens_per_second: dict[str, float]) -> None:
    assert choose_provider(ALL, FASTEST, tokens_per_second=tokens_per_second).provider == CUDA


def test_a_tiny_model_is_fastest_on_the_cpu_unless_measured_otherwise() -> None:
    assert choose_provider(ALL, FASTEST, parameters=1_400_000).provider == CPU
    assert choose_provider(ALL, FASTEST, parameters=600_000_000).provider == CUDA
    assert choose_provider(ALL, "cuda", parameters=1_400_000).provider == CUDA
    rates = {"cpu": 100.0, "cuda": 200.0}
    assert choose_provider(ALL, FASTEST, parameters=1_400_000, tokens_per_second=rates).provider == CUDA


def test_an_absent_provider_is_an_error_that_names_those_present() -> None:
    with pytest.raises(ConfigError) as caught:
        choose_provider([CPU, VULKAN], "cuda")
    assert "cuda" in caught.value.message
    assert "cpu, vulkan" in caught.value.hint


def test_fallback_where_it_is_allowed_says_that_it_is_one() -> None:
    choice = choose_provider([CPU, VULKAN], "cuda", allow_fallback=True)
    assert choice.provider == VULKAN
    assert "cuda is absent" in choice.reason


providers = st.lists(st.sampled_from(ALL), unique=True).map(lambda others: [CPU, *(other for other in others if other != CPU)])
rates = st.dictionaries(st.sampled_from(["cpu", "cuda", "vulkan", "metal"]), st.floats(0.1, 1e4))


@given(present=providers, wanted=st.sampled_from([FASTEST, LOWEST_POWER, "cuda", "qnn", "cpu"]), rates=rates)
def test_what_is_chosen_is_always_present_and_has_a_reason(present: list[Provider], wanted: str, rates: dict[str, float]) -> None:
    choice = choose_provider(present, wanted, allow_fallback=True, tokens_per_second=rates)
    assert choice.provider in present
    assert choice.reason
