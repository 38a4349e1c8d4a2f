"""The hardware probe: one look at everything that this machine has and that its engines can use.

It sends nothing anywhere: there is no network in it, and onnxruntime is told to be silent.
"""

from pathlib import Path

from .hardware.accelerators import read_accelerators
from .hardware.components import Hardware
from .hardware.cpu import read_cpu
from .hardware.drivers import look_at_drivers
from .hardware.heat import read_heat
from .hardware.memory import read_memory
from .hardware.power import read_power


async def probe_hardware(root: Path = Path("/")) -> Hardware:
    """Look at everything. What cannot be read is `unknown` with the reason, and never an error."""
    battery, power = read_power(root)
    gpus, npus = read_accelerators(root)
    drivers = await look_at_drivers(root)
    return Hardware(
        cpu=read_cpu(root),
        memory=read_memory(root),
        gpus=gpus,
        npus=npus,
        battery=battery,
        power=power,
        heat=read_heat(root),
        engines=drivers.engines,
        energy=drivers.energy,
    )
