"""Between text and token ids, as the folder's tokenizer.json says: the tokenizers library cuts, llguidance knows each token's bytes.

Only the worker process imports this module.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from llguidance import LLTokenizer
from tokenizers import Tokenizer

from ...protocols import ModelError
from ..worker.output import REASONING_END, REASONING_START
from .folder import TEMPLATE, TOKENIZER, TOKENIZER_CONFIGURATION, OnnxFolder

_GUARD: Final = "\0"
_BLANK: Final = "\N{LOWER ONE EIGHTH BLOCK}"
"""SentencePiece's character for a blank."""


class OnnxVocabulary:
    """The tokens of one model.

    Raises `ModelError` if its tokenizer is unusable.
    """

    def __init__(self, path: Path, folder: OnnxFolder) -> None:
        text = (path / TOKENIZER).read_text(encoding="utf-8")
        self.size = folder.vocabulary
        self.ends = frozenset(folder.ends)
        with _blame_tokenizer_file(path):
            self._tokenizer = Tokenizer.from_str(text)
        if (size := self._tokenizer.get_vocab_size()) > self.size:
            message = f"the tokenizer has {size} tokens, the model {self.size}"
            raise ModelError(message, hint="the folder's files belong to different models: download it again")
        with _blame_tokenizer_file(path):
            self._guidance = LLTokenizer(text, n_vocab=self.size, eos_token=sorted(self.ends))
        self._added: dict[int, Any] = self._tokenizer.get_added_tokens_decoder()
        self._settings = read_settings(path)
        self._pieces: dict[int, bytes] = {}

    @cached_property
    def start(self) -> int | None:
        """The token that a prompt begins with, if this model wants one."""
        # The tokens of an empty text are those that the tokenizer puts in front of every text.
        added: list[int] = self._tokenizer.encode("").ids
        return added[0] if added and added[0] not in self.ends else None

    @property
    def start_text(self) -> str:
        return _token_text(self._settings.get("bos_token"))

    @property
    def end_text(self) -> str:
        return _token_text(self._settings.get("eos_token"))

    @cached_property
    def control_texts(self) -> frozenset[str]:
        """Texts that the tokenizer would turn into control tokens."""
        return frozenset(str(token.content) for token in self._added.values() if token.special)

    @cached_property
    def longest_token(self) -> int:
        """Bytes of the longest text that one token can stand for."""
        return max(len(self._bytes(token)) for token in range(self.size))

    def tokenize(self, text: str) -> list[int]:
        """Return the token ids of `text`, in which the texts of control tokens count as those tokens. No start token is added."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def tokenize_inside(self, text: str) -> list[int]:
        """Tokenize text that follows other text: without the blank that SentencePiece puts in front of the first word."""
        if not self.puts_blank_in_front:
            return self.tokenize(text)
        guard, tokens = self.tokenize(_GUARD), self.tokenize(_GUARD + text)
        return tokens[len(guard) :] if tokens[: len(guard)] == guard else self.tokenize(text)

    @cached_property
    def puts_blank_in_front(self) -> bool:
        """True if the tokenizer puts a blank in front of the first word of a text, as SentencePiece does."""
        return bool(self._tokenizer.encode("a", add_special_tokens=False).tokens[0].startswith(_BLANK))

    def piece(self, token: int) -> bytes:
        """Return the bytes that a token stands for in text; none for tokens without text and for control tokens, except the markers of
        reasoning."""
        piece = self._pieces.get(token)
        if piece is None:
            piece = self._pieces[token] = b"" if self._is_silent(token) else self._bytes(token)
        return piece

    def guidance_tokenizer(self) -> LLTokenizer:
        """Return this vocabulary as llguidance's tokenizer."""
        return self._guidance

    def _is_silent(self, token: int) -> bool:
        added = self._added.get(token)
        if added is not None and added.content in (REASONING_START, REASONING_END):
            return False
        return token in self.ends or self._tokenizer.id_to_token(token) is None or (added is not None and added.special)

    def _bytes(self, token: int) -> bytes:
        return bytes(self._guidance.decode_bytes([token]))


@contextmanager
def _blame_tokenizer_file(path: Path) -> Iterator[None]:
    """Turn any exception of the block into a `ModelError` about the tokenizer file."""
    try:
        yield
    except Exception as error:  # These libraries raise Exception itself.
        raise ModelError(f"{path / TOKENIZER} is not a usable tokenizer: {error}", hint="download the folder again") from error


def read_settings(path: Path) -> dict[str, Any]:
    """Return the contents of tokenizer_config.json; empty if there is none."""
    file = path / TOKENIZER_CONFIGURATION
    settings: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return settings


def read_template(path: Path) -> str | None:
    """Return the folder's chat template, if it has one."""
    if (path / TEMPLATE).is_file():
        return (path / TEMPLATE).read_text(encoding="utf-8")
    template = read_settings(path).get("chat_template")
    if isinstance(template, list):  # Several, each with a name.
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None


def _token_text(token: object) -> str:
    """Return the text of a token in tokenizer_config.json, which is a text or an object."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else ""
