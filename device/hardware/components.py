"""The parts of a machine as the probe reports them: each says whether it is present, and which source says so."""

from enum import StrEnum

from pydantic import Field

from ...protocols import PowerSource, Thermal
from ...protocols.steps import Value


class Presence(StrEnum):
    """Presence of a part in the machine."""

    PRESENT = "present"
    ABSENT = "absent"
    UNKNOWN = "unknown"
    """The probe could not tell; not the same as absent."""


class Component(Value):
    """A part of the machine, or something that reads one."""

    presence: Presence
    reason: str = Field(min_length=1)
    """The source that says so, or the reason why none does."""


class Cpu(Component):
    """The processor, and how much of it this process may use."""

    model: str | None = None
    architecture: str
    physical_cores: int | None = None
    logical_cores: int | None = None
    usable_cores: int
    """Logical cores that affinity and the control group leave to this process, at least 1."""
    quota: float | None = None
    """Cores' worth of time that the control group grants; None: all."""
    features: tuple[str, ...] = ()
    """Instruction sets that matter to inference, by the kernel's names: `avx2`, `avx512f`, `amx_int8`, `neon` ..."""


class Memory(Component):
    """Main memory."""

    total_bytes: int | None = None
    free_bytes: int | None = None
    """Memory that can be taken without swapping, and within the control group's limit."""
    limit_bytes: int | None = None
    """The control group's limit, if it is below the total."""


class Battery(Component):
    """All batteries of the machine together; those of a mouse do not count."""

    charge: float | None = Field(default=None, ge=0, le=1)


class Power(Component):
    """The power source of the machine."""

    source: PowerSource | None = None


class Sensor(Value):
    """One temperature, in degrees Celsius, and how it stands to the sensor's own limits."""

    name: str
    celsius: float
    thermal: Thermal | None = None
    """None: the sensor has no limits."""


class Heat(Component):
    """The temperatures. Present where at least one of them has limits to hold it against."""

    thermal: Thermal | None = None
    """The state of the hottest sensor, judged by its limits."""
    sensors: tuple[Sensor, ...] = ()


class ProcessorKind(StrEnum):
    """The kind of processor that a provider runs on."""

    CPU = "cpu"
    GPU = "gpu"
    """With memory of its own."""
    INTEGRATED_GPU = "integrated_gpu"
    """Shares the memory, and the power budget, of the CPU."""
    NPU = "npu"


class Accelerator(Component):
    """A GPU or an NPU that the operating system lists, whether or not an engine can use it."""

    kind: ProcessorKind
    name: str
    driver: str | None = None


class EngineProvider(Component):
    """One way to compute, as an engine sees it."""

    name: str
    kind: ProcessorKind
    device: str = ""
    free_memory_bytes: int | None = None
    """Free bytes of the device's own memory."""


class InferenceEngine(Component):
    """A library that runs models. Unknown where looking at it failed."""

    name: str
    version: str | None = None
    providers: tuple[EngineProvider, ...] = ()


class EnergyComponent(Component):
    """One way to measure energy."""

    name: str


class Drivers(Value):
    """Facts that only drivers report."""

    engines: tuple[InferenceEngine, ...]
    energy: tuple[EnergyComponent, ...]


class Hardware(Drivers):
    """One look at the machine."""

    cpu: Cpu
    memory: Memory
    gpus: tuple[Accelerator, ...]
    """If there is none: one entry that says so."""
    npus: tuple[Accelerator, ...]
    battery: Battery
    power: Power
    heat: Heat
