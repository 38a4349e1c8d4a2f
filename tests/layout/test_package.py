"""What is installed, and under which name."""

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from built_wheel import build_wheel
from source_tree import FOLDERS, ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
MODELS = sorted((ROOT / "device" / "models").glob("*.gguf"))


@pytest.fixture(scope="module")
def wheel_files(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The names in a wheel built from a copy of what belongs to the distribution."""
    wheel = build_wheel(tmp_path_factory.mktemp("copy"))
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_every_package_is_listed() -> None:
    inits = (path for folder in FOLDERS for path in (ROOT / folder).rglob("__init__.py"))
    packages = {"nearfar", *(".".join(("nearfar", *path.parent.relative_to(ROOT).parts)) for path in inits)}
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == packages


def test_every_folder_with_code_is_a_package() -> None:
    folders = {path.parent for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")}
    assert {folder.relative_to(ROOT).as_posix() for folder in folders if not (folder / "__init__.py").exists()} == set()


def test_wheel_installs_nothing_beside_nearfar(wheel_files: set[str]) -> None:
    version = PROJECT["project"]["version"]
    assert {name.partition("/")[0] for name in wheel_files} == {"nearfar", f"nearfar-{version}.dist-info"}


def test_wheel_holds_every_module(wheel_files: set[str]) -> None:
    written = {f"nearfar/{path.relative_to(ROOT).as_posix()}" for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")}
    written |= {f"nearfar/{path.name}" for path in (ROOT / "public").glob("*.py")}
    assert written <= wheel_files


@pytest.mark.parametrize(
    "file",
    [
        "py.typed",
        *(f"{folder}/py.typed" for folder in FOLDERS),
        "protocols/proto/nearfar/v1/agent.proto",
        "__init__.pyi",
        "protocols/__init__.pyi",
        "protocols/v1/agent_pb2.pyi",
        "cloud/prices.toml",
        *(path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "orchestrator" / "serve" / "page").iterdir())),
        *(path.relative_to(ROOT).as_posix() for path in MODELS),
    ],
)
def test_wheel_holds_the_data(wheel_files: set[str], file: str) -> None:
    assert f"nearfar/{file}" in wheel_files


def test_models_and_adapters_ship_within_their_budget() -> None:
    assert {path.name for path in MODELS} == {"near.gguf", "far.gguf", "near-text.gguf", "near-calls.gguf", "near-judge.gguf"}
    assert sum(path.stat().st_size for path in MODELS) <= 12_000_000


def test_wheel_holds_the_licence(wheel_files: set[str]) -> None:
    assert any(Path(name).name == "LICENSE" for name in wheel_files)


@pytest.mark.parametrize("folder", [*FOLDERS, "public"])
def test_no_folder_is_importable_by_its_bare_name(folder: str, tmp_path: Path) -> None:
    find = f"import importlib.util; raise SystemExit(importlib.util.find_spec({folder!r}) is not None)"
    result = subprocess.run([sys.executable, "-c", find], cwd=tmp_path, timeout=60)
    assert result.returncode == 0


def test_test_modules_have_distinct_names() -> None:
    """pytest and mypy know them by their file names alone."""
    names = [path.name for path in (ROOT / "tests").rglob("*.py") if path.name != "conftest.py"]
    assert sorted(names) == sorted(set(names))
