"""The Llama architecture, small: RMSNorm, rotary positions, SwiGLU, tied embeddings."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

_SPREAD: Final = 0.02
"""Standard deviation of initial weights."""
_LOOK_BACK: Final = 2.5
_FAST: Final = 0.1
_LOOK_UP: Final = 1.9
_COPY: Final = 4.0
_SLOW: Final = 0.004


@dataclass(frozen=True, slots=True)
class Shape:
    """The size of a model."""

    width: int
    layers: int
    heads: int
    head_width: int
    hidden: int
    vocabulary: int
    context: int = 512
    rotary_base: float = 1_000_000.0
    epsilon: float = 1e-5


class Attention(nn.Module):
    """Causal self-attention with rotary positions (halves rotated, as in Hugging Face Llama)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        inner = shape.heads * shape.head_width
        self.heads = shape.heads
        self.query = nn.Linear(shape.width, inner, bias=False)
        self.key = nn.Linear(shape.width, inner, bias=False)
        self.value = nn.Linear(shape.width, inner, bias=False)
        self.output = nn.Linear(inner, shape.width, bias=False)

    def forward(self, hidden: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        query, key, value = (layer(hidden).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value))
        mixed = functional.scaled_dot_product_attention(_rotated(query, rotation), _rotated(key, rotation), value, is_causal=True)
        projected: Tensor = self.output(mixed.transpose(1, 2).flatten(-2))
        return projected

    def look_back(self, shape: Shape) -> tuple[Tensor, Tensor]:
        """Make the first head attend to the previous token; returns what it reads of it and the directions that it writes that to."""
        angles = _frequencies(shape)
        fast = (angles > _FAST).float()
        # The score of a distance is a sum of cosines, which is largest where all are in phase: at a distance of one.
        self.query.weight[: shape.head_width, 0] = _LOOK_BACK * torch.cat((fast * angles.cos(), -fast * angles.sin()))
        self.key.weight[: shape.head_width, 0] = _LOOK_BACK * torch.cat((fast, torch.zeros_like(fast)))
        # Only slow rotations, which hardly change over the length of a context, will compare what a token is.
        slow = (angles < _SLOW).repeat(2).float().unsqueeze(1)
        read, written = (slow * _directions(shape) for _ in range(2))
        self.value.weight[: shape.head_width] = read
        self.output.weight[:, : shape.head_width] = _SPREAD * written.T
        return read, written

    def look_up(self, passed_on: tuple[Tensor, Tensor], shape: Shape) -> None:
        """Make the first head attend to tokens whose predecessor is the current token, and copy them."""
        read, written = passed_on
        copied = _directions(shape)
        self.query.weight[: shape.head_width] = _LOOK_UP * read
        self.key.weight[: shape.head_width] = _LOOK_UP * written
        self.value.weight[: shape.head_width] = copied
        self.output.weight[:, : shape.head_width] = _COPY * _SPREAD * copied.T


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate = nn.Linear(shape.width, shape.hidden, bias=False)
        self.up = nn.Linear(shape.width, shape.hidden, bias=False)
        self.down = nn.Linear(shape.hidden, shape.width, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        projected: Tensor = self.down(functional.silu(self.gate(hidden)) * self.up(hidden))
        return projected


class Block(nn.Module):
    """One layer: attention, then feed-forward, each on a normalised residual stream."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(shape.width, eps=shape.epsilon)
        self.attention = Attention(shape)
        self.feed_norm = nn.RMSNorm(shape.width, eps=shape.epsilon)
        self.feed = FeedForward(shape)

    def forward(self, hidden: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        hidden = hidden + self.attention(self.attention_norm(hidden), rotation)
        summed: Tensor = hidden + self.feed(self.feed_norm(hidden))
        return summed


class TinyLlama(nn.Module):
    """A causal language model; ``forward`` maps (batch, length) ids to logits over the vocabulary."""

    cosine: Tensor
    sine: Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.width, eps=shape.epsilon)
        cosine, sine = _rotations(shape)
        self.register_buffer("cosine", cosine, persistent=False)
        self.register_buffer("sine", sine, persistent=False)
        self.apply(_initialise)
        if shape.layers > 1:
            with torch.no_grad():
                self._prepare_copying()

    def forward(self, ids: Tensor, chosen: Tensor | None = None) -> Tensor:
        """Return logits for all positions, or only for those where the mask ``chosen`` is true."""
        hidden = self.embedding(ids)
        length = ids.shape[1]
        rotation = (self.cosine[:length], self.sine[:length])
        for block in self.blocks:
            hidden = block(hidden, rotation)
        if chosen is not None:
            hidden = hidden[chosen]
        return functional.linear(self.norm(hidden), self.embedding.weight)

    def _prepare_copying(self) -> None:
        """Begin with what copying from the context takes, instead of waiting for training to find it.

        A head of the first layer attends to the previous token and passes on what it was; one of the second attends to where the
        current token stood before and copies what followed it: an induction head (Olsson et al. 2022, arXiv 2209.11895), laid out by
        hand. The first coordinate of every embedding is constant, for the head that looks at positions alone.
        """
        for block in self.blocks:
            block.attention.output.weight.zero_()
            block.feed.down.weight.zero_()
        # Of one length, so that the constant coordinate is constant also after normalisation.
        self.embedding.weight.div_(self.embedding.weight.norm(dim=1, keepdim=True) / (_SPREAD * math.sqrt(self.shape.width)))
        self.embedding.weight[:, 0] = 4 * _SPREAD
        first, second = (block.attention for block in list(self.blocks)[:2])
        second.look_up(first.look_back(self.shape), self.shape)

    def parameter_count(self) -> int:
        """Return the number of parameters, the tied embedding counted once."""
        return sum(parameter.numel() for parameter in self.parameters())


def _frequencies(shape: Shape) -> Tensor:
    exponents = torch.arange(0, shape.head_width, 2, dtype=torch.float32) / shape.head_width
    return shape.rotary_base**-exponents


def _directions(shape: Shape) -> Tensor:
    """Random orthonormal rows of shape (head_width, width), blind to the constant coordinate."""
    rows = torch.randn(shape.width, shape.head_width)
    rows[0] = 0
    return torch.linalg.qr(rows).Q.T


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=_SPREAD)


def _rotations(shape: Shape) -> tuple[Tensor, Tensor]:
    angles = torch.outer(torch.arange(shape.context), _frequencies(shape))
    doubled = torch.cat((angles, angles), dim=-1)
    return doubled.cos(), doubled.sin()


def _rotated(vector: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    cosine, sine = rotation
    first, second = vector.chunk(2, dim=-1)
    turned = torch.cat((-second, first), dim=-1)
    return (vector * cosine + turned * sine).to(vector.dtype)
