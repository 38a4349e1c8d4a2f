"""One pass through the shipped model in each weight format: `python -m nearfar.device.llama.first_pass on|off SECONDS`.

llama.cpp can die in its first matrix product, as a wheel built by GCC 12 does on a CPU with AMX, so this is tried in a process of its own.
`on` or `off` says whether the weights may go into llama.cpp's extra buffer types, which hold them rearranged for such instructions.
"""

import ctypes
import signal
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import llama_cpp

from .devices import keep_log

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


def main() -> None:
    """Exit with 0 once every pass is through."""
    # The signal's default action ends the process even inside a pass that hangs, and after the parent is gone.
    signal.alarm(int(sys.argv[2]))
    keep_log()
    llama_cpp.llama_backend_init()
    extra_buffers = sys.argv[1] == "on"
    _pass(_MODEL, extra_buffers=extra_buffers)  # First: it needs no room on the disk.
    with TemporaryDirectory() as folder:
        for name, file_type in FORMATS.items():
            rewritten = Path(folder) / f"{name}.gguf"
            quantize(rewritten, file_type)
            _pass(rewritten, extra_buffers=extra_buffers)
            rewritten.unlink()


def quantize(target: Path, file_type: int) -> None:
    """Write the shipped model to `target` in another format, or exit with the reason."""
    parameters = llama_cpp.llama_model_quantize_default_params()
    parameters.nthread = 1
    parameters.ftype = file_type
    parameters.allow_requantize = parameters.pure = True
    if llama_cpp.llama_model_quantize(str(_MODEL).encode(), str(target).encode(), parameters):
        sys.exit(f"llama.cpp cannot write its shipped model as {target}")


def _pass(path: Path, *, extra_buffers: bool) -> None:
    """Decode one batch, then a single token, which has kernels of its own."""
    parameters = llama_cpp.llama_model_default_params()
    parameters.n_gpu_layers = 0
    parameters.use_extra_bufts = extra_buffers
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


if __name__ == "__main__":
    main()
