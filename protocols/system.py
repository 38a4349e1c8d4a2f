"""Differences between systems: files that are replaced as a whole, the user's folders, file locks, and Python itself."""

import errno
import os
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Final
from uuid import uuid4

from .errors import ConfigError

CLOSED_ON_EXEC: Final[int] = getattr(os, "O_CLOEXEC", 0)
"""Flag of a file that no child process inherits; 0 on Windows, where none does."""


def file_locks(what: str) -> ModuleType:
    """Return the module `fcntl`. Raise `ConfigError` on Windows, which has none: `what` names the thing that needs it."""
    try:
        import fcntl
    except ModuleNotFoundError:
        raise ConfigError(f"{what} needs file locks, which this system does not have", hint="use Linux, macOS or WSL for it") from None
    return fcntl


def interpreter() -> str:
    """Return the path of this Python, with which a child process is started.

    Raises `ConfigError` where there is none, as in a program that embeds Python.
    """
    if not sys.executable or not os.access(sys.executable, os.X_OK):
        problem = f"child processes cannot be started: sys.executable is {sys.executable!r}, which is no program that may be run"
        raise ConfigError(problem, hint="set sys.executable to a Python that has nearfar")
    return sys.executable


def data_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the user's folder for models, prices, memory and runs: `NEARFAR_HOME`, else as the XDG base directory specification says."""
    return _own_folder(environment, "XDG_DATA_HOME", ".local/share")


def state_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the user's folder for what was measured on this machine, below `NEARFAR_HOME` too if that is set."""
    return _own_folder(environment, "XDG_STATE_HOME", ".local/state")


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the user's folder for what can be computed again, `cache` in `NEARFAR_HOME` if that is set."""
    return _own_folder(environment, "XDG_CACHE_HOME", ".cache", inside="cache")


def expand_home(path: Path) -> Path:
    """Return a path with `~` expanded. Raises `ConfigError` if it begins with the name of an unknown user, or this user has no folder."""
    try:
        return path.expanduser()
    except RuntimeError as error:
        hint = "begin the path with / or with another folder"
        raise ConfigError(f"{path} begins with ~, and that user's folder is not known", hint=hint) from error


def _own_folder(environment: Mapping[str, str], variable: str, usual: str, *, inside: str = "") -> Path:
    """Return `inside` of `NEARFAR_HOME`, else `nearfar` in the folder that `variable` names, or in the `usual` one.

    A relative path in `variable` is ignored, as the specification demands: it would name another folder wherever a command starts.
    """
    if home := environment.get("NEARFAR_HOME"):
        return expand_home(Path(home)) / inside
    named = Path(environment.get(variable, ""))
    return (named if named.is_absolute() else _home() / usual) / "nearfar"


def _home() -> Path:
    """Return the user's own folder. Raises `ConfigError` for a user without one, as of a container that runs under a bare number."""
    try:
        return Path.home()
    except RuntimeError as error:
        hint = "set HOME, or NEARFAR_HOME to a folder for all that Nearfar keeps"
        raise ConfigError("this user has no home folder: HOME is not set, and the system knows none", hint=hint) from error


@contextmanager
def replacing(path: Path, *, mode: int | None = None, follows_links: bool = True) -> Iterator[Path]:
    """Yield the path of a file to write, which takes the place of `path` at once when the block ends without an error.

    Else `path` keeps its content: after an error, on a full disk, and if the process is killed. The new file has the old one's owner and
    mode, unless `mode` is given. Devices and pipes have no content to keep and are written to directly. Raises `OSError`.

    Args:
        follows_links: a link stays one, and the file that it names is replaced; else a link is an error.
    """
    target = Path(os.path.realpath(path)) if follows_links else path
    present = _present(target)
    if present is not None and stat.S_ISLNK(present.st_mode):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    if present is not None and not stat.S_ISREG(present.st_mode):
        with _held_open(path):
            yield path
        return
    with _fresh_file(path, target, 0o666 if mode is None else mode) as fresh:
        yield fresh
        if present is not None and mode is None:
            _resemble(fresh, present)
        _flush(fresh, os.O_RDWR)
        fresh.replace(target)


@contextmanager
def creating(path: Path, *, mode: int = 0o666) -> Iterator[Path]:
    """Yield the path of a file to write, which appears as `path` at once when the block ends without an error.

    Raises `FileExistsError` if `path` exists, even as a link to nothing, and `OSError`.
    """
    if os.path.lexists(path):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
    with _fresh_file(path, path, mode) as fresh:
        yield fresh
        _flush(fresh, os.O_RDWR)
        try:
            os.link(fresh, path)  # unlike a rename, it never replaces a file that another process made meanwhile
        except FileExistsError:
            raise
        except OSError:  # a file system without hard links
            fresh.replace(path)


def hint_for(error: OSError, otherwise: str) -> str:
    """Return the hint for a file that could not be written: to make room on a full disk, else the other one."""
    return "free some space, or choose another folder" if is_full(error) else otherwise


def is_full(error: OSError) -> bool:
    """Return whether a write failed for lack of room."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def replace_text(path: Path, text: str, *, mode: int | None = None, follows_links: bool = True) -> None:
    """Write a text file as `replacing` does. Raises `OSError`."""
    with replacing(path, mode=mode, follows_links=follows_links) as fresh:
        fresh.write_text(text, encoding="utf-8")


@contextmanager
def _fresh_file(path: Path, target: Path, mode: int) -> Iterator[Path]:
    """Create a file beside the target, flush the folder after the block, and remove the file if it is still there."""
    fresh = target.with_name(f".nearfar-{uuid4().hex}{target.suffix}")  # libraries tell formats by the ending
    with ExitStack() as cleaning, _named(path, fresh):
        created = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | CLOSED_ON_EXEC, mode)
        cleaning.callback(fresh.unlink, missing_ok=True)
        os.close(created)
        yield fresh
        if folders := getattr(os, "O_DIRECTORY", 0):  # on Windows, a folder cannot be flushed
            with suppress(OSError):  # nor on some file systems; the file is whole at any rate
                _flush(target.parent, folders)


def _present(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except FileNotFoundError:
        return None


@contextmanager
def _held_open(path: Path) -> Iterator[None]:
    """Keep a pipe or device open for writing. Raise `OSError` for a pipe without a reader, which would never take what is written."""
    try:
        opened = os.open(path, os.O_WRONLY | getattr(os, "O_NONBLOCK", 0) | CLOSED_ON_EXEC)
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise OSError(errno.ENXIO, "nothing reads from it", str(path)) from None
        raise
    try:
        yield
    finally:
        os.close(opened)


@contextmanager
def _named(path: Path, fresh: Path) -> Iterator[None]:
    """Let errors name the file that the caller asked for."""
    try:
        yield
    except OSError as error:
        if error.filename in (None, str(fresh)):  # a write to a full disk names none
            error.filename = str(path)
        raise


def _resemble(fresh: Path, present: os.stat_result) -> None:
    if hasattr(os, "chown"):  # which Windows has not
        with suppress(PermissionError):  # only root may give files away
            os.chown(fresh, present.st_uid, present.st_gid)
    fresh.chmod(stat.S_IMODE(present.st_mode))


def _flush(path: Path, flags: int) -> None:
    opened = os.open(path, flags | CLOSED_ON_EXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
