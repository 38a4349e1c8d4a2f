"""The set-up of the environments that `make` works in: with a wheel of llama.cpp, with a compiler, and with neither.

pip, the compilers and the environments are real; the package that stands in for llama.cpp is built by a few lines of Python.
"""

import os
import shutil
import signal
import subprocess
import sys
import tarfile
import venv
from importlib.util import find_spec
from pathlib import Path

import pytest
from source_tree import ROOT

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="make and its scripts are for POSIX")

INSTALL = ROOT / "scripts" / "install.py"
PROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]

[project]
name = "thing"
version = "1"
"""
BACKEND = """
import os, pathlib, subprocess, sys, zipfile

NAME, VERSION, EXTRAS = {name!r}, {version!r}, {extras!r}

def build_wheel(folder, config_settings=None, metadata_directory=None):
    {work}
    stem = NAME.replace("-", "_") + "-" + VERSION
    lines = ["Metadata-Version: 2.1", "Name: " + NAME, "Version: " + VERSION]
    for extra, needed in EXTRAS.items():
        lines.append("Provides-Extra: " + extra)
        lines += ["Requires-Dist: " + each + "; extra == '" + extra + "'" for each in needed]
    with zipfile.ZipFile(os.path.join(folder, stem + "-py3-none-any.whl"), "w") as wheel:
        wheel.writestr(NAME.replace("-", "_") + ".py", "")
        wheel.writestr(stem + ".dist-info/METADATA", "\\n".join(lines) + "\\n")
        wheel.writestr(stem + ".dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(stem + ".dist-info/RECORD", "")
    return stem + "-py3-none-any.whl"
"""
COMPILES = 'print("[1/2] Building CXX object a.o", flush=True); print("[2/2] Linking", flush=True)'
FAILS = 'print("a.cpp:1: error: no such luck", flush=True); sys.exit(1)'
HANGS = 'subprocess.run([sys.executable, "-c", "import sys, time; pipe = open(sys.argv[1], chr(119)); time.sleep(300)", {pipe!r}])'


class Machine:
    """An environment to install into, a project with the two extras, and a folder in which pip looks for packages."""

    def __init__(self, folder: Path, python: Path) -> None:
        self.folder = folder
        self.python = python
        self.links = folder / "links"
        self.links.mkdir()
        self.programs = folder / "programs"
        self.programs.mkdir()
        llama = "llama-cpp-python"
        (folder / "thing").mkdir()
        _write_project(folder / "thing", "thing", "1", {"all": [llama], "all-but-llama": []}, "")

    def offer_source(self, work: str) -> None:
        """Let pip find llama.cpp as source only, which takes `work` to build."""
        source = self.folder / "llama_cpp_python-0.3.36"
        source.mkdir()
        _write_project(source, "llama-cpp-python", "0.3.36", {}, work)
        (source / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: llama-cpp-python\nVersion: 0.3.36\n", encoding="utf-8")
        with tarfile.open(self.links / f"{source.name}.tar.gz", "w:gz") as archive:
            archive.add(source, source.name)

    def offer_wheel(self, folder: Path) -> None:
        """Put llama.cpp into a folder as a wheel."""
        source = self.folder / "wheel"
        source.mkdir()
        folder.mkdir(exist_ok=True)
        _write_project(source, "llama-cpp-python", "0.3.36", {}, "")
        build = "import sys, backend; backend.build_wheel(sys.argv[1])"
        subprocess.run([self.python, "-c", build, folder], cwd=source, check=True)

    def link(self, *programs: str) -> None:
        """Let these programs be on the path, under the names that they have here."""
        for name in programs:
            found = shutil.which(name)
            if found is None:
                pytest.skip(f"there is no {name} on this machine")
            (self.programs / name).symlink_to(found)

    def environment(self, **variables: str) -> dict[str, str]:
        """The environment of `install.py`: no index, no configuration of pip, and only the programs that were linked."""
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "NEARFAR_")) and name not in ("CC", "CXX")
        }
        pip = {
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self.links),
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_CACHE_DIR": str(self.folder / "cache"),
        }
        return {**kept, **pip, "PATH": str(self.programs), **variables}

    def install(self, **variables: str) -> "subprocess.CompletedProcess[str]":
        """Install the project with the extra `all`, and return what was said."""
        command = [str(self.python), str(INSTALL), f"{self.folder / 'thing'}[all]"]
        return subprocess.run(command, env=self.environment(**variables), capture_output=True, text=True, check=False)

    def has_changed(self, **variables: str) -> bool:
        command = [str(self.python), str(INSTALL), "--changed"]
        return subprocess.run(command, env=self.environment(**variables), check=False).returncode == 0

    @property
    def packages(self) -> set[str]:
        """The packages in the environment."""
        return {path.name.split("-")[0] for path in (self.python.parents[1] / "lib").glob("python*/site-packages/*.dist-info")} - {
            "pip",
            "setuptools",
        }


def _write_project(folder: Path, name: str, version: str, extras: dict[str, list[str]], work: str) -> None:
    (folder / "pyproject.toml").write_text(PROJECT, encoding="utf-8")
    (folder / "backend.py").write_text(BACKEND.format(name=name, version=version, extras=extras, work=work or "pass"), encoding="utf-8")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A machine on which nothing but pip is installed, without a compiler."""
    pip = find_spec("pip")
    if pip is None or pip.origin is None:
        pytest.skip("there is no pip in this environment")
    venv.create(tmp_path / "venv", symlinks=True)
    (packages,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    (packages / "pip").symlink_to(Path(pip.origin).parent)  # ensurepip would take seconds
    return Machine(tmp_path, tmp_path / "venv" / "bin" / "python")


def test_without_a_compiler_or_a_wheel_everything_else_is_installed_and_a_line_says_so(machine: Machine) -> None:
    machine.offer_source(COMPILES)
    ended = machine.install()
    assert ended.returncode == 0
    assert machine.packages == {"thing"}
    (line,) = [line for line in ended.stdout.splitlines() if "left out" in line]
    assert "there is none of c++, g++, clang++" in line
    assert "onnxruntime runs near and far" in line


def test_a_later_compiler_is_noticed_and_llama_cpp_compiled(machine: Machine) -> None:
    machine.offer_source(COMPILES)
    assert machine.install().returncode == 0
    assert not machine.has_changed()
    machine.link("cc", "c++", "as", "ld", "cmake", "make")
    assert machine.has_changed()
    ended = machine.install()
    assert ended.returncode == 0, ended.stderr
    assert "is compiled" in ended.stdout
    assert machine.packages == {"thing", "llama_cpp_python"}
    assert not machine.has_changed()


def test_a_wheel_needs_no_compiler(machine: Machine) -> None:
    machine.offer_source(FAILS)
    machine.offer_wheel(machine.folder / "wheels")
    ended = machine.install(NEARFAR_LLAMA=str(machine.folder / "wheels"))
    assert ended.returncode == 0, ended.stderr
    assert "comes as a wheel" in ended.stdout
    assert machine.packages == {"thing", "llama_cpp_python"}


def test_a_folder_of_wheels_that_is_not_there_is_an_error_before_anything_is_done(machine: Machine) -> None:
    ended = machine.install(NEARFAR_LLAMA="/nowhere")
    assert ended.returncode != 0
    assert "NEARFAR_LLAMA is /nowhere" in ended.stderr
    assert machine.packages == set()


def test_a_wheel_among_pips_own_links_is_preferred_to_compiling(machine: Machine) -> None:
    machine.offer_source(FAILS)
    machine.offer_wheel(machine.links)
    machine.link("cc", "c++", "as", "ld", "cmake", "make")
    assert machine.install().returncode == 0
    assert machine.packages == {"thing", "llama_cpp_python"}


def test_llama_cpp_is_left_out_where_the_user_says_so(machine: Machine) -> None:
    machine.offer_source(FAILS)
    ended = machine.install(NEARFAR_LLAMA="no")
    assert ended.returncode == 0
    assert machine.packages == {"thing"}
    assert machine.has_changed()  # Without the wish it may be had.


@pytest.mark.parametrize(
    ("compiler", "words"),
    [
        ("/nowhere/cc", "CXX=/nowhere/cc cannot be run"),
        ("false", "cannot compile a small program"),
        ('c++ "', "is no command: No closing quotation"),
    ],
)
def test_a_compiler_that_does_not_work_is_named(machine: Machine, compiler: str, words: str) -> None:
    machine.offer_source(FAILS)
    machine.link("cc", "c++", "as", "ld", "cmake", "make", "false")
    ended = machine.install(CXX=compiler)
    assert ended.returncode == 0
    assert words in ended.stdout
    assert machine.packages == {"thing"}


def test_a_build_that_fails_shows_the_compilers_words_and_a_way_on(machine: Machine) -> None:
    machine.offer_source(FAILS)
    machine.link("cc", "c++", "as", "ld", "cmake", "make")
    ended = machine.install()
    assert ended.returncode != 0
    assert "a.cpp:1: error: no such luck" in ended.stderr
    assert "NEARFAR_LLAMA=no" in ended.stderr
    assert machine.packages == set()


def test_ctrl_c_ends_the_compilers_and_the_next_installation_goes_on(machine: Machine) -> None:
    pipe = machine.folder / "pipe"
    os.mkfifo(pipe)
    machine.offer_source(HANGS.format(pipe=str(pipe)))
    machine.link("cc", "c++", "as", "ld", "cmake", "make")
    command = [str(machine.python), str(INSTALL), f"{machine.folder / 'thing'}[all]"]
    with subprocess.Popen(command, env=machine.environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        with pipe.open(encoding="utf-8") as compiler:  # opened once the other end is: it compiles
            process.send_signal(signal.SIGINT)
            assert compiler.read() == ""  # read to the end, which comes when the compiler is gone
        _, said = process.communicate()
    assert process.returncode == 130
    assert "the next make goes on" in said
    machine.offer_wheel(machine.links)
    assert machine.install().returncode == 0
    assert machine.packages == {"thing", "llama_cpp_python"}


def test_what_an_interrupted_pip_left_half_installed_is_thrown_away(tmp_path: Path) -> None:
    left = tmp_path / "venv"
    venv.create(left, symlinks=True)
    (left / ".installing").touch()
    (left / "half-installed").touch()
    ended = subprocess.run(
        [ROOT / "scripts" / "set_up.sh", left, "--no-index", "--no-deps", "absent-package"], capture_output=True, text=True
    )
    assert f"making {left}" in ended.stdout
    assert not (left / "half-installed").exists()
    assert "No matching distribution found for absent-package" in ended.stderr
    assert ended.returncode == 1
