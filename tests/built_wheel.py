"""The wheel that users install, built from a copy of what belongs to the distribution, and an environment that has it alone."""

import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("cloud", "device", "orchestrator", "protocols", "public", "tests", "train", "benchmarks", "docs")


def build_wheel(folder: Path) -> Path:
    """Build the wheel in a folder."""
    for name in FOLDERS:
        if (ROOT / name).is_dir():
            outputs = ("runs",) if name == "train" else ()
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", *outputs))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / name)
    build = "from setuptools import build_meta; print(build_meta.build_wheel('dist'))"
    subprocess.run([sys.executable, "-c", build], cwd=folder, check=True, capture_output=True, timeout=110)
    (wheel,) = (folder / "dist").glob("*.whl")
    return wheel


def environment_with(wheel: Path, folder: Path) -> Path:
    """Make an environment that has the wheel, and the packages of this one without its nearfar. Return its folder of commands."""
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    (packages,) = folder.glob("lib/*/site-packages")
    # Paths in such a file are searched behind the environment's own, and the links to editable installations in them are not followed.
    borrowed = [path for path in sys.path if Path(path).name == "site-packages"]
    (packages / "borrowed.pth").write_text("\n".join(borrowed), encoding="utf-8")
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index", "--force-reinstall"]
    subprocess.run([*install, str(wheel)], check=True, capture_output=True, timeout=110)
    return python.parent
