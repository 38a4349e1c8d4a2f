"""Read the content of a message: texts, images and documents in the forms of OpenAI's, Anthropic's and LangChain's messages."""

from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from ...protocols import Attachment, InvalidRequest, Unsupported
from ...protocols.attachments import ATTACHMENT_MARK

Content = tuple[str, tuple[Attachment, ...]]
"""The text of a message, with marks at the places of its attachments, and the attachments."""
_TEXTS: Final = ("text", "input_text", "output_text")
_ATTACHED: Final = ("image_url", "input_image", "image", "file", "input_file", "document", "text-plain", "media")
_NESTED: Final = ("image_url", "file", "source")
"""Keys under which the data may stand in an object of their own."""
_DATA: Final = ("image_url", "url", "file_data", "data", "base64", "text", "file_url", "file_id", "file_uri")
"""Keys of the data, or of a link to it."""
_HINT: Final = '{"type": "text", "text": "..."} or {"type": "image_url", "image_url": {"url": "data:image/png;base64,..."}}'
_LINK_HINT: Final = "send its bytes, as a data: URL or as base64: nearfar fetches nothing"


def read_content(content: object, where: str) -> Content:
    """Return the text and the attachments of a content: a string, or a list of parts.

    `where` names it in errors. Raises `InvalidRequest` for what is malformed, and `Unsupported` for a link and for a kind of file that no
    agent reads.
    """
    if content is None or isinstance(content, str):
        return content or "", ()
    if not isinstance(content, Sequence) or isinstance(content, bytes):
        raise InvalidRequest(f"{where} must be text, not {type(content).__name__}", hint=_HINT)
    parts = [_part(part, f"{where}[{place}]") for place, part in enumerate(content)]
    attachments = tuple(part for part in parts if isinstance(part, Attachment))
    if not attachments:
        return "".join(map(str, parts)), ()
    marked = (ATTACHMENT_MARK if isinstance(part, Attachment) else part.replace(ATTACHMENT_MARK, "") for part in parts)
    return "".join(marked).rstrip(ATTACHMENT_MARK), attachments


def _part(part: object, where: str) -> str | Attachment:
    if isinstance(part, (str, Attachment)):
        return part
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    if isinstance(part, Mapping) and kind in _TEXTS and isinstance(text := part.get("text"), str):
        return text
    if not isinstance(part, Mapping) or kind not in _ATTACHED:
        raise InvalidRequest(f"{where} is {kind!r}, and agents read texts, images and documents alone", hint=_HINT)
    return _file(part, where)


def _file(part: Mapping[Any, Any], where: str) -> str | Attachment:
    """Return a document of plain text as text, which every agent can read, and any other one as an attachment."""
    body = {**part, **next((part[key] for key in _NESTED if isinstance(part.get(key), Mapping)), {})}
    name = str(body.get("filename") or body.get("name") or body.get("title") or "")
    media_type = str(body.get("media_type") or body.get("mime_type") or "")
    data = next((body[key] for key in _DATA if isinstance(body.get(key), (str, bytes))), None)
    if data is None:
        raise InvalidRequest(f"{where} holds no data", hint=_LINK_HINT)
    if part.get("type") == "text-plain" or body.get("type") == "text":
        return _named(str(data), name)
    if isinstance(data, str):
        media_type, data = _decoded(data, media_type, where)
    if media_type.startswith("text/") or media_type == "application/json":
        return _named(_as_text(data, where), name)
    try:
        return Attachment.of(data, media_type=media_type, name=name)
    except (InvalidRequest, Unsupported) as error:
        raise type(error)(f"{where}: {error.message}", hint=error.hint) from None


def _decoded(data: str, media_type: str, where: str) -> tuple[str, bytes]:
    """Return the media type and the bytes of a `data:` URL or of base64 text."""
    head, is_url, body = data.partition(",")
    try:
        if not (is_url and head.lower().startswith("data:")):
            return media_type, b64decode("".join(data.split()), validate=True)
        named, *options = head[len("data:") :].lower().split(";")
        return named, b64decode("".join(body.split()), validate=True) if "base64" in options else unquote_to_bytes(body)
    except (NotBase64, ValueError):
        is_link = "://" in data[:20] or not data.strip()
    if is_link:
        raise Unsupported(f"{where} is a link", hint=_LINK_HINT)
    raise InvalidRequest(f"{where} is neither a data: URL nor base64", hint=_LINK_HINT)


def _as_text(data: bytes, where: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise InvalidRequest(f"{where} is text in another encoding than UTF-8", hint="convert it to UTF-8") from None


def _named(text: str, name: str) -> str:
    """Return the text of a file, set off from the texts around it."""
    return f"\n\n{name or 'File'}:\n{text}\n\n"
