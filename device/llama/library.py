"""llama-cpp-python's own `Llama`, for tests, training and benchmarks that compare with it."""

import runpy
import sys
from functools import cache

import llama_cpp.llama_cpp

from .extra_buffers import extra_buffers


@cache
def prepare_library() -> None:
    """Let every `Llama` of this process leave out the extra buffer types where they crash; its constructor has no option for them."""
    if extra_buffers().usable:
        return
    default = llama_cpp.llama_cpp.llama_model_default_params

    def parameters() -> llama_cpp.llama_cpp.llama_model_params:
        made: llama_cpp.llama_cpp.llama_model_params = default()
        made.use_extra_bufts = False
        return made

    llama_cpp.llama_cpp.llama_model_default_params = parameters


if __name__ == "__main__":
    # python -m nearfar.device.llama.library MODULE ARGUMENTS...: prepare the library, then run one of its modules, such as the server.
    prepare_library()
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
