"""Images and documents for tests: one pixel, a picture of any size, and a page."""

import zlib
from struct import pack

from nearfar.protocols import Attachment


def png(width: int, height: int) -> bytes:
    """A red picture of that size."""
    rows = (b"\0" + b"\xff\0\0" * width) * height
    chunks = ((b"IHDR", pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    written = (pack(">I", len(body)) + name + body + pack(">I", zlib.crc32(name + body)) for name, body in chunks)
    return b"\x89PNG\r\n\x1a\n" + b"".join(written)


PIXEL = Attachment(media_type="image/png", data=png(1, 1))
PAGE = Attachment(media_type="application/pdf", data=b"%PDF-1.7\n%%EOF", name="bill.pdf")
