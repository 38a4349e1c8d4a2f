"""Write the stubs by which type checkers see the names that `nearfar` and `nearfar.protocols` load when they are first used.

python scripts/stubs.py
"""

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Final

import nearfar
import nearfar.protocols

ROOT: Final = Path(__file__).parents[1]
STUBS: Final[dict[Path, ModuleType]] = {
    ROOT / "public" / "__init__.pyi": nearfar,
    ROOT / "protocols" / "__init__.pyi": nearfar.protocols,
}
_HEAD: Final = '"""The names that __init__.py loads lazily. Written by scripts/stubs.py."""\n'


def stub(package: ModuleType) -> str:
    """Return the stub of a package."""
    return "\n".join([_HEAD, *_imports(package), "", "_HOMES: dict[str, str]", "__all__: list[str]", "__version__: str", ""])


def _imports(package: ModuleType) -> Iterator[str]:
    """Yield an import for each name, classes before functions, as ruff sorts them."""
    for name, home in sorted(package._HOMES.items(), key=lambda item: (item[1], item[0][0].islower(), item[0].lower())):
        yield f"from {package.__name__}.{home} import {name} as {name}"


if __name__ == "__main__":
    for path, package in STUBS.items():
        path.write_text(stub(package), encoding="utf-8")
