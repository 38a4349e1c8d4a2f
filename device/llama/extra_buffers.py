"""Find out once per build of llama.cpp and CPU whether its extra buffer types work, which hold weights rearranged for the CPU.

llama.cpp can die in its first matrix product, as a wheel built by GCC 12 does on a CPU with AMX, so this is tried in a process of its own.
The answer is kept as a small file in nearfar's home folder. Whatever loads a model with llama.cpp in its own process asks here first.

    python -m nearfar.device.llama.extra_buffers on|off SECONDS

makes one pass through the shipped model in each weight format; `on` or `off` says whether the weights may go into extra buffer types.
"""

import ctypes
import hashlib
import logging
import signal
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import llama_cpp
import llama_cpp.llama_cpp
from pydantic import ValidationError

from ...protocols import ModelError
from ...protocols.steps import Value
from ...protocols.system import interpreter, replace_text, state_folder
from ..hardware.processors import read_cpu
from .devices import keep_log

logger = logging.getLogger(__name__)

_PROGRAM: Final = Path(__file__)
"""Part of what an answer stands for, since a later version may try more."""
_SECONDS: Final = 60
"""The passes through the shipped model take about half a second; a child that takes this long hangs."""
_SPARE_SECONDS: Final = 10
_PATIENT_SECONDS: Final = 10
"""After these, a warning says why nothing happens."""
_KEY_LENGTH: Final = 32
_CRASHES: Final = frozenset(
    {signal.SIGSEGV, signal.SIGILL, signal.SIGBUS, signal.SIGFPE, signal.SIGABRT, signal.SIGTRAP, signal.SIGALRM, signal.SIGSYS}
)
"""Signals that a build which does not suit the CPU dies of. Others, as of a system without memory, say nothing about the build."""
_REBUILD: Final = "pip install --force-reinstall --no-deps --no-cache-dir --no-binary llama-cpp-python llama-cpp-python"
_MODEL: Final = Path(__file__).parents[1] / "models" / "near.gguf"
_TOKENS: Final = 64
"""Kernels for whole matrices start above 32."""
FORMATS: Final = {
    "q4_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0,
    "q4_1": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_1,
    "q4_k": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_K_S,
    "q5_k": llama_cpp.LLAMA_FTYPE_MOSTLY_Q5_K_S,
    "q6_k": llama_cpp.LLAMA_FTYPE_MOSTLY_Q6_K,
    "iq4_xs": llama_cpp.LLAMA_FTYPE_MOSTLY_IQ4_XS,
}
"""With the shipped model's own Q8_0, the formats that llama.cpp rearranges for AMX; some of them it rearranges for other CPUs too.

The last four need rows of 256 weights. In each layer of the shipped model one matrix has them; llama.cpp writes the others in a format
with shorter blocks.
"""


class ExtraBuffers(Value):
    """The answer for one build on one CPU."""

    usable: bool
    reason: str = ""
    """Why they are off; empty where they are usable."""


class _Inconclusive(Exception):
    """The first pass failed for a reason that is not the build's."""


@cache
def extra_buffers() -> ExtraBuffers:
    """Look up the answer, or try a first pass in a child process and keep what came of it.

    Raises `ModelError` if llama.cpp also dies without the extra buffer types.
    """
    path = state_folder() / "engines" / f"llama.cpp-{_identity()}.json"
    kept = _read_answer(path)
    if kept is not None:
        return kept
    try:
        found = _try_first_passes()
    except _Inconclusive as error:
        logger.warning("cannot test llama.cpp's extra buffer types on this machine: %s", error)
        return ExtraBuffers(usable=True)
    _write_answer(path, found)
    return found


def _try_first_passes() -> ExtraBuffers:
    death = _first_pass("on")
    if not death:
        return ExtraBuffers(usable=True)
    try:
        second = _first_pass("off")
    except _Inconclusive as error:
        logger.warning("cannot test llama.cpp without extra buffer types on this machine: %s", error)
        second = ""
    if second:
        message = f"llama.cpp cannot compute on this CPU: its first pass {second}, also without extra buffer types"
        raise ModelError(message, hint=f"build it on this machine: {_REBUILD}")
    return ExtraBuffers(usable=False, reason=f"with them, the first pass of this build of llama.cpp on this CPU {death}")


def _first_pass(setting: str) -> str:
    """Run the first pass in a child process. Return how the child died; empty if it ended well."""
    # -P: the user's working folder may hold a json.py.
    command = [interpreter(), "-P", "-W", "default", "-m", "nearfar.device.llama.extra_buffers", setting, str(_SECONDS)]
    try:
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as child:
            words = _last_words(child)
    except subprocess.TimeoutExpired:
        return f"did not end within {_SECONDS} s"
    except OSError as error:
        raise _Inconclusive(str(error)) from error
    if not child.returncode:
        return ""
    if -child.returncode not in _CRASHES:
        raise _Inconclusive(words or f"exit code {child.returncode}")
    died = signal.Signals(-child.returncode)
    return f"did not end within {_SECONDS} s" if died is signal.SIGALRM else f"died of {died.name}"


def _last_words(child: "subprocess.Popen[bytes]") -> str:
    """Wait for the child's end and return its last line. Raises `subprocess.TimeoutExpired` if it hangs, and ends it."""
    try:
        try:
            written = child.communicate(timeout=_PATIENT_SECONDS)[1]
        except subprocess.TimeoutExpired:
            logger.warning("the first pass of this build of llama.cpp on this CPU hangs; it is stopped after %d s", _SECONDS)
            written = child.communicate(timeout=_SECONDS + _SPARE_SECONDS)[1]
    except BaseException:
        child.kill()
        raise
    lines = written.decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else ""


def _identity() -> str:
    """Name the passes, the build (the library's files with sizes and times), the processor and its instruction sets."""
    spec = find_spec("llama_cpp")
    folder = Path(spec.origin).parent if spec is not None and spec.origin is not None else Path()
    libraries = sorted(path for path in (folder / "lib").glob("*") if path.is_file())
    files = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in libraries]
    cpu = read_cpu()
    parts = (_PROGRAM.read_bytes(), files, cpu.model, cpu.architecture, cpu.features)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:_KEY_LENGTH]


def _read_answer(path: Path) -> ExtraBuffers | None:
    try:
        return ExtraBuffers.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        logger.warning("%s cannot be read, so llama.cpp is tried again: %s", path, error)
        return None


def _write_answer(path: Path, found: ExtraBuffers) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(path, found.model_dump_json())
    except OSError as error:
        logger.warning("%s cannot be written, so llama.cpp is tried again at the next start: %s", path, error)


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        logger.warning("%s cannot be removed: %s", path, error)


def run_first_passes() -> None:
    """Exit with 0 once every pass is through."""
    # The signal's default action ends the process even inside a pass that hangs, and after the parent is gone.
    signal.alarm(int(sys.argv[2]))
    keep_log()
    llama_cpp.llama_backend_init()
    has_extra = sys.argv[1] == "on"
    _decode_once(_MODEL, has_extra=has_extra)  # First: it needs no room on the disk.
    with TemporaryDirectory() as folder:
        for name, file_type in FORMATS.items():
            rewritten = Path(folder) / f"{name}.gguf"
            quantize(rewritten, file_type)
            _decode_once(rewritten, has_extra=has_extra)
            rewritten.unlink()


def quantize(target: Path, file_type: int) -> None:
    """Write the shipped model to `target` in another format, or exit with the reason."""
    parameters = llama_cpp.llama_model_quantize_default_params()
    parameters.nthread = 1
    parameters.ftype = file_type
    parameters.allow_requantize = parameters.pure = True
    if llama_cpp.llama_model_quantize(str(_MODEL).encode(), str(target).encode(), parameters):
        sys.exit(f"llama.cpp cannot write its shipped model as {target}")


def _decode_once(path: Path, *, has_extra: bool) -> None:
    """Decode one batch, then a single token, which has kernels of its own. All of it on the CPU: a GPU would take the batch over."""
    parameters = llama_cpp.llama_model_default_params()
    parameters.use_extra_bufts = has_extra
    devices = (ctypes.c_void_p * 1)(None)  # the empty list: no GPU
    parameters.devices = ctypes.addressof(devices)
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), parameters)
    if not model:
        sys.exit(f"llama.cpp cannot load {path}")
    options = llama_cpp.llama_context_default_params()
    options.n_ctx = options.n_batch = options.n_ubatch = 2 * _TOKENS
    options.n_threads = options.n_threads_batch = 1
    context = llama_cpp.llama_init_from_model(model, options)
    if not context:
        sys.exit("llama.cpp cannot make a context")
    for count in (_TOKENS, 1):
        tokens = (llama_cpp.llama_token * count)(*range(3, 3 + count))
        if llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(ctypes.cast(tokens, ctypes.POINTER(ctypes.c_int32)), count)):
            sys.exit("llama.cpp cannot decode")
    llama_cpp.llama_free(context)
    llama_cpp.llama_model_free(model)


@cache
def prepare_library() -> None:
    """Let every `Llama` of this process leave out the extra buffer types where they crash; its constructor has no option for them.

    For tests, training and benchmarks that compare with llama-cpp-python's own class.
    """
    if extra_buffers().usable:
        return
    default = llama_cpp.llama_cpp.llama_model_default_params

    def parameters() -> llama_cpp.llama_cpp.llama_model_params:
        made: llama_cpp.llama_cpp.llama_model_params = default()
        made.use_extra_bufts = False
        return made

    llama_cpp.llama_cpp.llama_model_default_params = parameters


if __name__ == "__main__":
    run_first_passes()
