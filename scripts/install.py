"""Install with pip into the environment of this interpreter, with or without llama.cpp, and show how far it is.

    install.py PIP_ARGUMENT...   install; the extra `all` becomes `all-but-llama` where llama.cpp cannot be had
    install.py --changed         exit with 0 if llama.cpp was left out and the machine has changed since, so that it may be had now

llama.cpp comes from a wheel where pip finds one: on its index, in its cache, or where NEARFAR_LLAMA says (a folder or a page with wheels).
Else it is compiled, if this machine can. NEARFAR_LLAMA=no leaves it out.
"""

import hashlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
VENV: Final = Path(sys.prefix)
LEFT_OUT: Final = VENV / ".without-llama"
"""Exists where llama.cpp was left out; holds a digest of what the machine offered."""
INSTALLING: Final = VENV / ".installing"
"""Exists while pip changes the environment. What is left of an interrupted change cannot be trusted."""
LOG: Final = VENV / "set-up.log"
WISH: Final = "NEARFAR_LLAMA"
PIP: Final = (sys.executable, "-m", "pip", "--disable-pip-version-check")
_ALL: Final = re.compile(r"(?<=[\[,])all(?=[,\]])")
_COMPILERS: Final = {"CC": ("cc", "gcc", "clang"), "CXX": ("c++", "g++", "clang++")}
_PROGRAMS: Final = {
    "CC": (".c", '#include <stdio.h>\nint main(void) { puts(""); return 0; }\n', ()),
    "CXX": (
        ".cpp",
        "#include <filesystem>\n#include <thread>\n"
        "int main() { std::thread([] {}).join(); return std::filesystem::path().empty() ? 0 : 1; }\n",
        ("-std=c++17", "-pthread"),
    ),
}
_HOW_TO_GET_ONE: Final = "Debian, Ubuntu: apt install build-essential; Fedora: dnf install gcc-c++; macOS: xcode-select --install"
_COMPILE_SECONDS: Final = 60.0
"""For a program of one line; a compiler that waits for a lock or a license server would hold up the installation for ever."""
_GRACE_SECONDS: Final = 5.0
_LOG_SECONDS: Final = 15.0
"""Between two lines about the progress where the output is no terminal."""
INTERRUPTED: Final = 130
_MOST_COMPLAINTS: Final = 8
_COMPILED: Final = re.compile(r"^\s*\[(\d+)/(\d+)\] ")
_STAGES: Final = {
    r"Collecting ([\w.-]+)": "collecting {}",
    r"\s*Building wheel for ([\w.-]+)": "building {}",
    r"Installing collected packages": "installing the packages",
}
"""By what a line of pip begins with."""


class Plan(NamedTuple):
    """How llama.cpp is to be had."""

    message: str
    """One line for the user."""
    options: tuple[str, ...] = ()
    """Further options of pip."""
    left_out: bool = False


def main(arguments: Sequence[str]) -> int:
    """Return the exit code."""
    if arguments == ["--changed"]:
        return 0 if LEFT_OUT.exists() and LEFT_OUT.read_text(encoding="utf-8") != _situation() else 1
    if not any(_ALL.search(argument) for argument in arguments):
        return _install(arguments)
    plan = make_plan()
    if plan.message:
        print(plan.message, flush=True)
    if plan.left_out:
        arguments = [_ALL.sub("all-but-llama", argument) for argument in arguments]
    code = _install(arguments, plan.options)
    if code == 0 and plan.left_out:
        LEFT_OUT.write_text(_situation(), encoding="utf-8")
    elif code == 0:
        LEFT_OUT.unlink(missing_ok=True)
    elif code != INTERRUPTED and not plan.left_out:
        print(f"To go on without llama.cpp: make {WISH}=no ...", file=sys.stderr)
    return code


def make_plan() -> Plan:
    """Find out how llama.cpp can be had, before minutes of work."""
    wish = os.environ.get(WISH, "")
    if wish == "no":
        return Plan(f"llama.cpp is left out, as {WISH}=no says: onnxruntime runs near and far", left_out=True)
    if wish and "://" not in wish and not Path(wish).exists():
        sys.exit(f"{WISH} is {wish}, which is neither `no`, nor a folder with wheels, nor the address of a page with wheels")
    requirement = _requirement()
    links = [option for place in (wish, *_cached_wheels()) if place for option in ("--find-links", place)]
    if _pip_finds(requirement, "--only-binary", ":all:", *links):
        message = "" if _is_installed() else "llama.cpp comes as a wheel"
        return Plan(message, ("--only-binary", "llama-cpp-python", *links))
    obstacle = "; ".join(_obstacles())
    lack = f"pip finds no wheel of it that suits, also not with {WISH}" if wish else "pip finds no wheel of it"
    if not obstacle:
        message = f"llama.cpp is compiled ({lack}): once, about 4 minutes on 2 cores. {WISH}=no leaves it out, {WISH}=FOLDER names wheels"
        return Plan(message, tuple(links))
    message = (
        f"llama.cpp is left out: {lack}, and it cannot be compiled ({obstacle}). onnxruntime runs near and far instead. "
        f"With a compiler ({_HOW_TO_GET_ONE}) or {WISH}=FOLDER-WITH-WHEELS, the next make installs it."
    )
    return Plan(message, left_out=True)


def _requirement() -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extra: list[str] = project["project"]["optional-dependencies"]["llama"]
    return next(line for line in extra if line.startswith("llama-cpp-python"))


def _is_installed() -> bool:
    try:
        return bool(version("llama-cpp-python"))
    except PackageNotFoundError:
        return False


def _pip_finds(requirement: str, *options: str) -> bool:
    """Return True if pip could install a package, or has it already, without its dependencies."""
    command = [*PIP, "install", "--dry-run", "--quiet", "--quiet", "--no-deps", "--retries", "1", *options, requirement]
    return subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode == 0


def _cached_wheels() -> set[str]:
    """Return the folders of wheels that pip has built before, for any index."""
    command = [*PIP, "cache", "list", "llama_cpp_python", "--format", "abspath"]
    found = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
    return {str(Path(line).parent) for line in found.stdout.splitlines() if line.endswith(".whl")}


def _obstacles() -> Iterator[str]:
    """Yield what keeps this machine from compiling llama.cpp."""
    for variable in _COMPILERS:
        fault = _compiler_fault(variable)
        if fault:
            yield fault
    if shutil.which("cmake") is None and not _pip_finds("cmake>=3.21", "--only-binary", ":all:"):
        yield "there is no cmake, and pip finds no wheel of it"
    if not any(map(shutil.which, ("ninja", "make"))) and not _pip_finds("ninja", "--only-binary", ":all:"):
        yield "there is no ninja or make, and pip finds no wheel of ninja"


def _compiler_fault(variable: str) -> str:
    """Compile and link a small program, as CMake will; return what is wrong, or nothing."""
    try:
        named = shlex.split(os.environ.get(variable, ""))
    except ValueError as error:
        return f"{variable}={os.environ[variable]} is no command: {error}"
    found = next(filter(None, map(shutil.which, _COMPILERS[variable])), None)
    command = named or ([found] if found else [])
    if not command:
        return f"there is none of {', '.join(_COMPILERS[variable])}"
    origin = f"{variable}={os.environ[variable]}" if named else command[0]
    suffix, program, options = _PROGRAMS[variable]
    with tempfile.TemporaryDirectory(prefix="nearfar-") as folder:
        source = Path(folder) / f"try{suffix}"
        source.write_text(program, encoding="utf-8")
        try:
            run = subprocess.run(
                [*command, *options, str(source), "-o", f"{folder}/try"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                check=False,
                timeout=_COMPILE_SECONDS,
            )
        except OSError as error:
            return f"{origin} cannot be run: {error.strerror}"
        except subprocess.TimeoutExpired:
            return f"{origin} needs more than {_COMPILE_SECONDS:g} s for a small program"
    words = run.stdout.decode(errors="replace").strip().splitlines()
    return f"{origin} cannot compile a small program: {words[0] if words else 'it says nothing'}" if run.returncode else ""


def _situation() -> str:
    """Return a digest of what decides whether llama.cpp can be had. The texts may hold passwords of an index."""
    programs = [shutil.which(name) for names in (*_COMPILERS.values(), ("cmake",)) for name in names]
    names = sorted(name for name in os.environ if name in (WISH, *_COMPILERS) or name.startswith("PIP_"))
    return hashlib.sha256(repr((programs, [(name, os.environ[name]) for name in names])).encode()).hexdigest()


def _install(arguments: Sequence[str], options: Sequence[str] = ()) -> int:
    """Run pip and show how far it is; return its exit code, or `INTERRUPTED`."""
    print(f"installing {' '.join(arguments)} into {VENV}", flush=True)
    progress = Progress()
    # In a session of its own, so that ending it ends the compilers, too.
    with subprocess.Popen(
        [*PIP, "install", "--verbose", "--progress-bar", "off", *options, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as pip:
        assert pip.stdout is not None, "it is a pipe"
        reader = threading.Thread(target=_read, args=(pip.stdout, progress), daemon=True)
        try:
            reader.start()
            while reader.is_alive():
                progress.show()
                reader.join(timeout=1.0)
            code = pip.wait()
        except KeyboardInterrupt:
            _end(pip)
            progress.clear()
            print("Interrupted. The compilers are stopped, too; the next make goes on.", file=sys.stderr)
            return INTERRUPTED
    progress.clear()
    if code:
        print("\n".join(_complaints()), f"The installation failed. All that pip said is in {LOG}", sep="\n", file=sys.stderr)
    else:
        INSTALLING.unlink(missing_ok=True)
    return code


def _read(output: IO[str], progress: "Progress") -> None:
    with LOG.open("w", encoding="utf-8") as log:
        for line in output:
            log.write(line)
            log.flush()
            progress.note(line)
            if line.startswith("Installing collected packages"):
                INSTALLING.touch()


def _end(pip: "subprocess.Popen[str]") -> None:
    """End pip and everything that it started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(pip.pid, number)
            pip.wait(timeout=_GRACE_SECONDS)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue


def _complaints() -> list[str]:
    """Return the lines of the log that name an error, or else the last ones."""
    lines = LOG.read_text(encoding="utf-8", errors="replace").splitlines()
    named = [line for line in lines if "error:" in line.lower()]
    return named[:_MOST_COMPLAINTS] or lines[-_MOST_COMPLAINTS:]


class Progress:
    """One line about what pip does and for how long, rewritten every second; where the output is no terminal, a line now and then."""

    def __init__(self) -> None:
        self._start = self._said = time.monotonic()
        self._stage = "pip starts"
        self._rewrites = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"

    def note(self, line: str) -> None:
        """Take the stage from a line of pip or of what it runs."""
        compiled = _COMPILED.search(line)
        if compiled:
            self._stage = f"compiling: {compiled[1]} of {compiled[2]} files"
            return
        for pattern, stage in _STAGES.items():
            if found := re.match(pattern, line):
                self._stage = stage.format(*found.groups())

    def show(self) -> None:
        """Print the line, if it is time."""
        now = time.monotonic()
        minutes, seconds = divmod(int(now - self._start), 60)
        text = f"{minutes}:{seconds:02} {self._stage}"
        if self._rewrites:
            print(f"\r\033[K{text[: shutil.get_terminal_size().columns - 1]}", end="", flush=True)
        elif now - self._said >= _LOG_SECONDS:
            self._said = now
            print(text, flush=True)

    def clear(self) -> None:
        """Remove the line from a terminal."""
        if self._rewrites:
            print("\r\033[K", end="", flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main(sys.argv[1:]))
