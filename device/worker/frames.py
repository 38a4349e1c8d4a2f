"""Length-prefixed JSON objects: how the agent and its worker process talk over their private socket."""

import json
import struct
from collections.abc import Iterator
from typing import Final, TypeAlias

from pydantic import JsonValue

Frame: TypeAlias = dict[str, JsonValue]

_LENGTH: Final = struct.Struct("<I")
_MOST_BYTES: Final = 1 << 28
"""Most bytes of one frame: far more than the longest prompt."""


def encode(frame: Frame) -> bytes:
    """Return the bytes of one frame."""
    body = json.dumps(frame, ensure_ascii=False, separators=(",", ":")).encode()
    return _LENGTH.pack(len(body)) + body


class FrameDecoder:
    """Cuts a stream of bytes, received in pieces of any size, into frames."""

    def __init__(self) -> None:
        self._received = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield every frame that `data` completes. Raises `ValueError` for what is none."""
        self._received += data
        while len(self._received) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._received)
            if length > _MOST_BYTES:
                raise ValueError(f"a frame of {length} bytes is too long")
            end = _LENGTH.size + length
            if len(self._received) < end:
                return
            frame = json.loads(self._received[_LENGTH.size : end])
            del self._received[:end]
            yield frame
