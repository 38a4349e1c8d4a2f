"""What `nearfar doctor` prints about machines other than this one."""

from nearfar.device.hardware.probe import EngineProvider, Hardware, InferenceEngine
from nearfar.device.hardware.processors import Accelerator, Cpu, Presence, ProcessorKind
from nearfar.device.hardware.state import Battery, Heat, Memory, Power, Sensor
from nearfar.orchestrator.cli.doctor import MachineLine, hardware_lines
from nearfar.protocols import PowerSource, Thermal

GIB = 1 << 30


def lines_of(*providers: EngineProvider) -> dict[tuple[str, str], MachineLine]:
    seen, none = Presence.PRESENT, Presence.ABSENT
    laptop = Hardware(
        cpu=Cpu(presence=seen, reason="read", model="A CPU", architecture="x86_64", physical_cores=4, logical_cores=8, usable_cores=6),
        memory=Memory(presence=seen, reason="read", total_bytes=16 * GIB, free_bytes=3 * GIB, limit_bytes=4 * GIB),
        gpus=(Accelerator(presence=seen, reason="read", kind=ProcessorKind.GPU, name="NVIDIA Some Card", driver="nvidia"),),
        npus=(Accelerator(presence=none, reason="none is listed", kind=ProcessorKind.NPU, name=""),),
        battery=Battery(presence=seen, reason="read", charge=0.42),
        power=Power(presence=seen, reason="read", source=PowerSource.BATTERY),
        heat=Heat(presence=seen, reason="read", thermal=Thermal.FAIR, sensors=(Sensor(name="package", celsius=88.0),)),
        engines=(InferenceEngine(presence=seen, reason="loaded", name="llama.cpp", providers=providers),),
        energy=(),
    )
    return {(line.name, line.presence): line for line in hardware_lines(laptop)}


def provider(name: str, kind: ProcessorKind, presence: Presence, reason: str = "because") -> EngineProvider:
    return EngineProvider(presence=presence, reason=reason, name=name, kind=kind, device=f"chip of {name}", free_memory_bytes=6 * GIB)


def test_a_laptop_is_told_in_lines_that_people_read() -> None:
    lines = lines_of()
    details = [lines[name, "present"].detail for name in ("cpu", "memory", "battery", "power source", "heat")]
    assert details == [
        "A CPU: 4 cores, 8 threads, 6 usable",
        "3.0 GiB free of 16.0, and 4.0 for this process",
        "42%",
        "battery",
        "fair; the hottest sensor shows 88 \N{DEGREE SIGN}C",
    ]
    assert lines["npu", "absent"].detail == "none is listed"


def test_a_gpu_that_no_engine_uses_comes_with_the_command_that_changes_it() -> None:
    absent = provider("cuda", ProcessorKind.GPU, Presence.ABSENT, "this build is for the CPU only")
    lines = lines_of(provider("cpu", ProcessorKind.CPU, Presence.PRESENT), absent)
    assert "GGML_CUDA" in lines["gpu", "present"].note
    assert lines["llama.cpp", "absent"].detail.endswith("this build is for the CPU only")


def test_a_gpu_that_is_used_needs_no_advice() -> None:
    lines = lines_of(provider("cuda", ProcessorKind.GPU, Presence.PRESENT))
    assert lines["gpu", "present"].note == ""
    assert lines["llama.cpp", "present"].detail == "cuda (chip of cuda, 6.0 GiB free)"
