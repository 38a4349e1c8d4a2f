"""The interface of an engine: a model with its vocabulary, and a context that decodes batches of tokens.

Only the worker process imports this module.
"""

from collections.abc import Sequence
from typing import Protocol, TypeAlias

import numpy as np
from llguidance import LLTokenizer
from numpy.typing import NDArray

from .sequences import CacheMemory

Logits: TypeAlias = NDArray[np.float32]
Mask: TypeAlias = NDArray[np.bool_]


class Vocabulary(Protocol):
    """Between text and token ids."""

    size: int
    ends: frozenset[int]
    """Tokens that end the output."""

    @property
    def start(self) -> int | None:
        """The token that a prompt begins with, if this model wants one."""

    @property
    def start_text(self) -> str: ...

    @property
    def end_text(self) -> str: ...

    @property
    def control_texts(self) -> frozenset[str]:
        """Texts that the tokenizer would turn into control tokens."""

    @property
    def longest_token(self) -> int:
        """Bytes of the longest text that one token can stand for."""

    @property
    def puts_blank_in_front(self) -> bool:
        """True if the tokenizer puts a blank in front of the first word of a text, as SentencePiece does."""

    def tokenize(self, text: str) -> list[int]:
        """Return the token ids of `text`, in which the texts of control tokens count as those tokens. No start token is added."""

    def tokenize_inside(self, text: str) -> list[int]:
        """Tokenize text that follows other text: without the blank that SentencePiece puts in front of the first word."""

    def piece(self, token: int) -> bytes:
        """Return the bytes that a token stands for in text; none for control tokens, except the markers of reasoning."""

    def guidance_tokenizer(self) -> LLTokenizer:
        """Return this vocabulary as llguidance's tokenizer."""


class Model(Protocol):
    """A loaded model."""

    @property
    def vocabulary(self) -> Vocabulary: ...

    @property
    def chat_template(self) -> str | None: ...


class TokenBatch(Protocol):
    """The tokens of one pass through the model."""

    capacity: int
    size: int

    def clear(self) -> None: ...

    def add(self, tokens: Sequence[int], *, position: int, sequence: int, last: bool) -> int:
        """Append tokens of one sequence; returns the index of the last one, whose logits are computed if it is the `last` of its step."""


class Context(CacheMemory, Protocol):
    """The key-value cache of all sequences, and the pass through the model that fills it."""

    cells: int
    """Tokens that the cache holds, over all sequences."""

    @property
    def adapters(self) -> Sequence[str]:
        """Names of the adapters that were loaded with the model; they are numbered from 1."""

    @property
    def batch(self) -> TokenBatch: ...

    def use_adapter(self, number: int) -> None:
        """Let the passes from now on go through an adapter; 0: through the model as it is. Raises `ModelError` if that fails."""

    def decode(self) -> bool:
        """Run the batch through the model; False if the cache has no room for it. Raises `ModelError` if the pass fails."""

    def logits(self, index: int) -> Logits:
        """Return the logits at one position of the decoded batch, valid until the next `decode`."""
