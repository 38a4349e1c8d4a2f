"""A worker process whose llama.cpp finds a card `CUDA0` beside the CPU. What is put there the CPU computes, and llama.cpp knows no better.

So a model goes the whole way of offloading, but for a GPU's own kernels. Where FAKE_GPU_IS_FULL is set, other programs have taken all
memory of the card since it was asked. The structures are those of ggml-backend-impl.h as of
llama-cpp-python `VERSION`.
"""

import ctypes
import os
from typing import Final

from llama_cpp._ggml import libggml

from nearfar.device.llama.worker import load
from nearfar.device.worker.serving import serve_parent

VERSION: Final = "0.3.36"
NAME: Final = b"CUDA0"
DESCRIPTION: Final = b"a card that is none"
_FREE: Final = 8 << 30
_GPU: Final = 1
_API_VERSION: Final = 2
_POINTER: Final = ctypes.c_void_p
_SIZE: Final = ctypes.POINTER(ctypes.c_size_t)


class _Properties(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("description", ctypes.c_char_p),
        ("memory_free", ctypes.c_size_t),
        ("memory_total", ctypes.c_size_t),
        ("type", ctypes.c_int),
        ("device_id", ctypes.c_char_p),
        ("capabilities", ctypes.c_bool * 4),
    )


_Text = ctypes.CFUNCTYPE(_POINTER, _POINTER)
_Memory = ctypes.CFUNCTYPE(None, _POINTER, _SIZE, _SIZE)
_Kind = ctypes.CFUNCTYPE(ctypes.c_int, _POINTER)
_Tell = ctypes.CFUNCTYPE(None, _POINTER, ctypes.POINTER(_Properties))
_Make = ctypes.CFUNCTYPE(_POINTER, _POINTER, _POINTER)
_Ask = ctypes.CFUNCTYPE(ctypes.c_bool, _POINTER, _POINTER)
_Count = ctypes.CFUNCTYPE(ctypes.c_size_t, _POINTER)
_Get = ctypes.CFUNCTYPE(_POINTER, _POINTER, ctypes.c_size_t)
_Find = ctypes.CFUNCTYPE(_POINTER, _POINTER, ctypes.c_char_p)


class _DeviceInterface(ctypes.Structure):
    _fields_ = (
        ("get_name", _Text),
        ("get_description", _Text),
        ("get_memory", _Memory),
        ("get_type", _Kind),
        ("get_props", _Tell),
        ("init_backend", _Make),
        ("get_buffer_type", _Text),
        ("get_host_buffer_type", _POINTER),
        ("buffer_from_host_ptr", _POINTER),
        ("supports_op", _Ask),
        ("supports_buft", _Ask),
        ("optional", _POINTER * 4),
    )


_Allocate = ctypes.CFUNCTYPE(_POINTER, _POINTER, ctypes.c_size_t)
_Number = ctypes.CFUNCTYPE(ctypes.c_size_t, _POINTER)


class _BufferType(ctypes.Structure):
    _fields_ = (
        ("get_name", _Text),
        ("alloc_buffer", _Allocate),
        ("get_alignment", _Number),
        ("optional", _POINTER * 3),
        ("device", _POINTER),
        ("context", _POINTER),
    )


class _Device(ctypes.Structure):
    _fields_ = (("interface", _DeviceInterface), ("registry", _POINTER), ("context", _POINTER))


class _Registry(ctypes.Structure):
    _fields_ = (
        ("api_version", ctypes.c_int),
        ("get_name", _Text),
        ("get_device_count", _Count),
        ("get_device", _Get),
        ("get_proc_address", _Find),
        ("context", _POINTER),
    )


def register_fake_gpu() -> tuple[object, ...]:
    """Add the card to ggml's registry, for the rest of the process. What is returned has to be kept alive."""
    buffers, backend = libggml.ggml_backend_cpu_buffer_type, libggml.ggml_backend_cpu_init
    buffers.restype = backend.restype = _POINTER
    texts = tuple(ctypes.create_string_buffer(text) for text in (NAME, DESCRIPTION, b"CUDA"))
    name, description, family = (ctypes.addressof(text) for text in texts)
    full = _BufferType(_Text(lambda _buffers: name), _Allocate(lambda _buffers, _size: None), _Number(lambda _buffers: 64))
    is_full = "FAKE_GPU_IS_FULL" in os.environ
    device = _Device(
        _DeviceInterface(
            get_name=_Text(lambda _device: name),
            get_description=_Text(lambda _device: description),
            get_memory=_Memory(_tell_memory),
            get_type=_Kind(lambda _device: _GPU),
            get_props=_Tell(_tell_properties),
            init_backend=_Make(lambda _device, _parameters: backend()),
            get_buffer_type=_Text(lambda _device: ctypes.addressof(full) if is_full else buffers()),
            supports_op=_Ask(lambda _device, _operation: True),
            supports_buft=_Ask(lambda _device, _buffers: True),
        )
    )
    full.device = ctypes.addressof(device)
    registry = _Registry(
        _API_VERSION,
        _Text(lambda _registry: family),
        _Count(lambda _registry: 1),
        _Get(lambda _registry, _index: ctypes.addressof(device)),
        _Find(lambda _registry, _name: None),
    )
    device.registry = ctypes.addressof(registry)
    libggml.ggml_backend_register(ctypes.c_void_p(ctypes.addressof(registry)))
    return texts, full, device, registry


def _tell_memory(_device: int, free: "ctypes._Pointer[ctypes.c_size_t]", total: "ctypes._Pointer[ctypes.c_size_t]") -> None:
    free[0] = total[0] = _FREE


def _tell_properties(_device: int, into: "ctypes._Pointer[_Properties]") -> None:
    into[0] = _Properties(NAME, DESCRIPTION, _FREE, _FREE, _GPU)


if __name__ == "__main__":
    kept = register_fake_gpu()
    serve_parent(load)
