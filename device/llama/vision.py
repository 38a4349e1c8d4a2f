"""Images for models with a multimodal projector, by llama.cpp's mtmd library.

Only the worker process imports this module, and only if a projector is configured.
"""

import ctypes
import weakref
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Final

import llama_cpp
from llama_cpp import mtmd_cpp

from ...protocols import Attachment, InvalidRequest, ModelError, Unsupported
from ..worker.engine import ImagePart
from .model import LlamaContext, LlamaModel

_MOST_PIXELS: Final = 50_000_000
"""An image of more takes over a gigabyte before it is scaled down."""
_BATCH: Final = 512
_NO_SPACE: Final = 1
_HINT: Final = "take the projector from the repository of the model, such as mmproj-MODEL.gguf"


class LlamaImages:
    """Turns images into parts of a prompt.

    Raises `ModelError` if the file is no projector of this model that reads images.
    """

    def __init__(self, path: str, model: LlamaModel, context: LlamaContext, *, threads: int, on_gpu: bool) -> None:
        parameters = mtmd_cpp.mtmd_context_params_default()
        parameters.use_gpu, parameters.n_threads = on_gpu, threads
        parameters.print_timings = parameters.warmup = False
        handle = mtmd_cpp.mtmd_init_from_file(path.encode(), model.handle, parameters)
        if not handle:
            raise ModelError(f"llama.cpp cannot load the projector {path} for this model", hint=_HINT)
        self._handle = handle
        weakref.finalize(self, mtmd_cpp.mtmd_free, handle).atexit = False
        self._context = context
        if not mtmd_cpp.mtmd_support_vision(handle):
            raise ModelError(f"the projector {path} reads no images", hint=_HINT)

    def read(self, image: Attachment) -> list[list[int] | ImagePart]:
        """Return the image's parts: tokens that the model wants around it, and the image itself, whole or in slices.

        Raises `InvalidRequest` if it cannot be decoded or is too large, `Unsupported` for a format that llama.cpp does not decode.
        """
        if image.media_type == "image/webp":
            raise Unsupported("llama.cpp reads no WebP images", hint="convert it to PNG or JPEG")
        if image.pixels > _MOST_PIXELS:
            raise InvalidRequest(f"the image has more than {_MOST_PIXELS} pixels, or none", hint="scale it down")
        with ExitStack() as stack:
            chunks = mtmd_cpp.mtmd_input_chunks_init()
            assert chunks is not None, "it is a small allocation"
            stack.callback(mtmd_cpp.mtmd_input_chunks_free, chunks)
            data = (ctypes.c_uint8 * len(image.data)).from_buffer_copy(image.data)
            bitmap = mtmd_cpp.mtmd_helper_bitmap_init_from_buf(self._handle, data, len(image.data), False)
            if not bitmap:
                raise InvalidRequest("the image cannot be decoded", hint="send a whole PNG, JPEG or GIF file")
            stack.callback(mtmd_cpp.mtmd_bitmap_free, bitmap)
            marker = mtmd_cpp.mtmd_default_marker()
            text = mtmd_cpp.mtmd_input_text(marker, len(marker), False, True)
            if mtmd_cpp.mtmd_tokenize(self._handle, chunks, ctypes.byref(text), (ctypes.c_void_p * 1)(bitmap), 1):
                raise InvalidRequest("the model's projector does not take this image", hint="send another size or format")
            return list(self._parts(chunks))

    def _parts(self, chunks: mtmd_cpp.mtmd_input_chunks_p) -> Iterator[list[int] | ImagePart]:
        for place in range(mtmd_cpp.mtmd_input_chunks_size(chunks)):
            chunk = mtmd_cpp.mtmd_input_chunks_get(chunks, place)
            count = int(mtmd_cpp.mtmd_input_chunk_get_n_tokens(chunk))
            if mtmd_cpp.mtmd_input_chunk_get_type(chunk) == mtmd_cpp.MTMD_INPUT_CHUNK_TYPE_TEXT:
                tokens = mtmd_cpp.mtmd_input_chunk_get_tokens_text(chunk, ctypes.byref(ctypes.c_size_t(0)))
                yield list(tokens[:count]) if tokens else []
            else:
                yield self._part(chunk, count)

    def _part(self, chunk: mtmd_cpp.mtmd_input_chunk_p, count: int) -> ImagePart:
        own = mtmd_cpp.mtmd_input_chunk_copy(chunk)

        def decode(position: int, sequence: int) -> bool:
            end = llama_cpp.llama_pos(0)
            code = mtmd_cpp.mtmd_helper_eval_chunk_single(
                self._handle, self._context.handle, own, position, sequence, _BATCH, False, ctypes.byref(end)
            )
            if code not in (0, _NO_SPACE):
                raise ModelError(f"the image could not be encoded (code {code})", hint="the projector may be of another model")
            return bool(code == 0)

        part = ImagePart(positions=int(mtmd_cpp.mtmd_input_chunk_get_n_pos(chunk)), tokens=count, decode=decode)
        weakref.finalize(part, mtmd_cpp.mtmd_input_chunk_free, own).atexit = False
        return part
