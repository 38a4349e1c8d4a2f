"""Makes llama.cpp die of a real signal, in every Python process that has this folder on PYTHONPATH.

CRASHING_ENGINE says when: `extra` as a build that does not suit its CPU does, in a batch of more than 32 tokens with extra buffer types;
`beside_gpu` does so, too, but for models that may use a GPU, which takes such batches over; the name of a format, as `Q4_K`, does so with
a model of that format alone; `always` in any batch; `hang` never ends such a batch; `killed` is killed in it, as where memory runs out;
`later` dies in any batch outside the first pass. FIRST_PASSES is a file that gets a line for each first pass.
"""

import ctypes
import os
import signal
import sys
from pathlib import Path

import llama_cpp

_WHEN = os.environ.get("CRASHING_ENGINE", "")
_LONG = 32
_load, _decode = llama_cpp.llama_model_load_from_file, llama_cpp.llama_decode
_extra = True
_format = ""
_has_gpu = False


def _loading(path: bytes, parameters: llama_cpp.llama_model_params) -> object:
    global _extra, _format, _has_gpu
    _extra = bool(parameters.use_extra_bufts)
    _has_gpu = not parameters.devices  # no list: every device there is
    model = _load(path, parameters)
    if model:
        description = ctypes.create_string_buffer(200)  # as "llama ?B Q4_K - Small"
        llama_cpp.llama_model_desc(model, description, len(description))
        _format = description.value.decode().split()[2]
    return model


def _decoding(context: object, batch: llama_cpp.llama_batch) -> object:
    suffers = _extra and batch.n_tokens > _LONG
    suffers_here = suffers and (_WHEN in ("extra", _format) or (_WHEN == "beside_gpu" and not _has_gpu))
    if _WHEN == "always" or suffers_here or (_WHEN == "later" and not _tries_first_pass()):
        os.kill(os.getpid(), signal.SIGSEGV)
    if _WHEN == "killed" and suffers:
        os.kill(os.getpid(), signal.SIGKILL)
    if _WHEN == "hang" and suffers:
        signal.pause()
    return _decode(context, batch)


def _tries_first_pass() -> bool:
    return "nearfar.device.llama.extra_buffers" in sys.orig_argv


if _tries_first_pass():
    with Path(os.environ["FIRST_PASSES"]).open("a", encoding="utf-8") as file:
        file.write(sys.orig_argv[-2] + "\n")
for module in (llama_cpp, llama_cpp.llama_cpp):
    vars(module).update(llama_model_load_from_file=_loading, llama_decode=_decoding)
