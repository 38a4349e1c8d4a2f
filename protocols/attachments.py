"""Images and documents that a message carries, with their bytes. A link is no attachment: this package never fetches one."""

import binascii
import re
from base64 import b64decode, b64encode
from functools import cached_property
from hashlib import sha256
from math import inf
from pathlib import Path
from struct import error as StructError
from struct import unpack
from typing import Annotated, Final, Literal, Self, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, ValidationError, model_validator

from .errors import InvalidRequest, Unsupported
from .limits import ATTACHMENT_BYTES


class Value(BaseModel):
    """Base of all contract types: immutable, closed to unknown fields, and silent about its content in validation errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, defer_build=True)


MediaType = Literal["image/png", "image/jpeg", "image/gif", "image/webp", "application/pdf"]
MEDIA_TYPES: Final[tuple[MediaType, ...]] = get_args(MediaType)
ATTACHMENT_MARK: Final = "\ufffc"
"""The object replacement character: marks the place of an attachment in the text of its message."""
_ALIASES: Final = {"image/jpg": "image/jpeg", "application/x-pdf": "application/pdf", "application/octet-stream": ""}
_NAME_LENGTH: Final = 200
_MOST_IMAGE_TOKENS: Final = 5_000
"""Upper bound of the tokens of one image at the providers (November 2026): 4,784 at Anthropic, less at Google and OpenAI."""
_LEAST_IMAGE_TOKENS: Final = 1_200
"""Upper bound of the tokens of a small image: Gemini 3 takes 1,120 whatever its size."""
_PIXELS_PER_TOKEN: Final = 750
"""Anthropic's rule. Others take fewer tokens for as many pixels."""
_PAGE_TOKENS: Final = 5_000
"""Upper bound of the tokens of one page of a document: its text, and its image where the provider shows both."""
_PAGE: Final = re.compile(rb"/Type\s*/Page(?![A-Za-z])")
"""The object of a page in a PDF. Some files compress it."""
_PAGE_BYTES: Final = 8 * 1024
"""Bytes of a page where the pages cannot be counted. A scanned page has far more, and counts as several."""
_MOST_PAGES: Final = 1_000
"""Pages that Google accepts, more than the others."""
_SIGNATURES: Final[dict[MediaType, tuple[int, tuple[bytes, ...]]]] = {
    "image/png": (0, (b"\x89PNG\r\n\x1a\n",)),
    "image/jpeg": (0, (b"\xff\xd8\xff",)),
    "image/gif": (0, (b"GIF87a", b"GIF89a")),
    "image/webp": (8, (b"WEBP",)),
    "application/pdf": (0, (b"%PDF-",)),
}
"""Place and bytes by which the formats are known."""


def _decoded(data: object) -> object:
    """Return base64 text as bytes, anything else unchanged. Raise `ValueError` for text of another form."""
    if not isinstance(data, str):
        return data
    if len(data) > 4 * (ATTACHMENT_BYTES // 3 + 1):
        raise ValueError(f"it has more than {ATTACHMENT_BYTES} bytes")
    try:
        return b64decode(data, validate=True)
    except binascii.Error:
        raise ValueError("it is not base64") from None


def as_base64(data: bytes) -> str:
    """Return bytes as text."""
    return b64encode(data).decode()


class Attachment(Value):
    """An image or a document, whole."""

    media_type: MediaType
    """The format of the data."""
    data: Annotated[
        bytes, BeforeValidator(_decoded), PlainSerializer(as_base64, return_type=str), Field(min_length=1, max_length=ATTACHMENT_BYTES)
    ] = Field(repr=False)
    """The bytes of the file; base64 in JSON."""
    name: str = Field(default="", max_length=_NAME_LENGTH)
    """Name of the file; empty: none."""

    @classmethod
    def of(cls, data: bytes, *, media_type: str = "", name: str = "") -> Self:
        """Return an attachment with the format that its `data` shows; a `media_type`, if given, must be that one, and `name` is a file's.

        Raises `Unsupported` for a format that no agent reads, `InvalidRequest` for data of another format or too many bytes.
        """
        named = _ALIASES.get(media_type.lower(), media_type.lower())
        found = next((kind for kind, (start, begins) in _SIGNATURES.items() if data.startswith(begins, start)), "")
        if (named or found) not in MEDIA_TYPES:
            unread = repr(named[:40]) if named else "a file of this format"
            raise Unsupported(f"no agent reads {unread}", hint=f"send {', '.join(MEDIA_TYPES)} or text")
        try:
            return cls.model_validate({"media_type": named or found, "data": data, "name": name[:_NAME_LENGTH]})
        except ValidationError as error:
            raise InvalidRequest(f"the attachment cannot be sent: {error.errors()[0]['msg'].removeprefix('Value error, ')}") from None

    @classmethod
    def read(cls, path: Path | str) -> Self:
        """Return the file at a `path` as an attachment. Raises as `of` does, and `OSError` if it cannot be read."""
        path = Path(path)
        return cls.of(path.read_bytes(), name=path.name)

    @model_validator(mode="after")
    def _data_has_the_format(self) -> Self:
        start, signatures = _SIGNATURES[self.media_type]
        if not self.data.startswith(signatures, start):
            raise ValueError(f"the data is not {self.media_type}")
        return self

    @property
    def is_image(self) -> bool:
        """Return True for an image, False for a document."""
        return self.media_type.startswith("image/")

    @cached_property
    def digest(self) -> str:
        """Return the SHA-256 of the data."""
        return sha256(self.data).hexdigest()

    @property
    def base64(self) -> str:
        """Return the data as base64 text."""
        return as_base64(self.data)

    @property
    def data_url(self) -> str:
        """Return the data as a `data:` URL."""
        return f"data:{self.media_type};base64,{self.base64}"

    @property
    def most_tokens(self) -> int:
        """Return an upper bound of the tokens that it takes in a prompt, for estimates before it is sent."""
        if not self.is_image:
            return _PAGE_TOKENS * min(len(_PAGE.findall(self.data)) or -(-len(self.data) // _PAGE_BYTES), _MOST_PAGES)
        tokens = self.pixels / _PIXELS_PER_TOKEN
        return round(min(max(tokens, _LEAST_IMAGE_TOKENS), _MOST_IMAGE_TOKENS))

    @property
    def pixels(self) -> float:
        """Return the pixels of an image by its header; infinity where that does not tell."""
        try:
            match self.media_type:
                case "image/png":
                    width, height = unpack(">II", self.data[16:24])
                case "image/gif":
                    width, height = unpack("<HH", self.data[6:10])
                case "image/jpeg":
                    height, width = unpack(">HH", _jpeg_frame(self.data)[5:9])
                case _:
                    return inf
        except StructError:
            return inf
        return float(width * height)

    @property
    def shown(self) -> str:
        """Return its format, size and digest, for records that must not hold its content."""
        return f"[{self.media_type}, {len(self.data)} bytes, sha256 {self.digest[:16]}]"


def _jpeg_frame(data: bytes) -> bytes:
    """Return the beginning of the segment that tells the size of a JPEG; empty if there is none."""
    place = 2
    while data[place : place + 1] == b"\xff" and place + 4 <= len(data):
        marker, length = data[place + 1], int.from_bytes(data[place + 2 : place + 4], "big")
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):  # tables and extensions
            return data[place : place + 9]
        place += 2 + length
    return b""
