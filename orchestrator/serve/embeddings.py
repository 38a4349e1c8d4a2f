"""`POST /v1/embeddings`: the meanings of texts as vectors, computed on this device whatever the policy says."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from ...protocols import ModelNotFound
from ..util.embedding.embedder import MAXIMUM_TOKENS, NAME, WIDTH, MiniLmEmbedder
from ..util.runtime import in_thread
from .endpoint import Exchange
from .errors import BadField
from .options import PREFIX
from .requests import field, ignored, warning

if TYPE_CHECKING:
    from ..util.embedding.embedder import Vector

_MODELS: Final = (f"{PREFIX}embedding", NAME)
_READ: Final = frozenset({"model", "input", "dimensions", "encoding_format"})
_MOST_TEXTS: Final = 2048


async def embed(exchange: Exchange) -> None:
    """Answer with a vector for each text."""
    body = exchange.body
    if body.get("model") not in _MODELS:
        raise ModelNotFound(f"there is no model {body.get('model')!r} for embeddings", hint=f"use {_MODELS[0]}")
    texts = _texts(body)
    width = field(body, "dimensions", int, "a number", WIDTH)
    if not 1 <= width <= WIDTH:
        raise BadField(f"dimensions is 1 to {WIDTH}", param="dimensions")
    form = field(body, "encoding_format", str, "float or base64", "float")
    if form not in ("float", "base64"):
        raise BadField("encoding_format is float or base64", param="encoding_format")
    vectors, tokens = await exchange.while_connected(in_thread(_embedded, texts))
    data = [{"object": "embedding", "index": index, "embedding": _written(vector, width, form)} for index, vector in enumerate(vectors)]
    warnings = [*ignored(body, _READ), *([warning("shortened", "dimensions")] if width < WIDTH else [])]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    headers = {"x-nearfar-warnings": ", ".join(warnings)} if warnings else {}
    await exchange.reply({"object": "list", "data": data, "model": NAME, "usage": usage}, headers=headers)


def _texts(body: Mapping[str, Any]) -> list[str]:
    given = body.get("input")
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list) or not all(isinstance(text, str) and text for text in texts):
        raise BadField("input is a text or a list of texts, none of them empty", param="input", hint="tokens are not read")
    if not 0 < len(texts) <= _MOST_TEXTS:
        raise BadField(f"input has 1 to {_MOST_TEXTS} texts", param="input")
    return texts


@cache
def _embedder() -> MiniLmEmbedder:
    return MiniLmEmbedder()


def _embedded(texts: Sequence[str]) -> "tuple[list[Vector], int]":
    """Return the vectors, and the number of tokens that were read for them."""
    embedder = _embedder()
    return [embedder.embed(text) for text in texts], sum(len(embedder.tokens(text, MAXIMUM_TOKENS)) for text in texts)


def _written(vector: "Vector", width: int, form: str) -> list[float] | str:
    """Return the first components of a vector, made a unit vector again."""
    import numpy

    short = vector[:width] / numpy.linalg.norm(vector[:width])
    return b64encode(short.astype("<f4").tobytes()).decode() if form == "base64" else [float(value) for value in short]
