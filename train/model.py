"""The Llama architecture, small: RMSNorm, rotary positions, SwiGLU, tied embeddings."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


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
    rotary_base: float = 10_000.0
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

    def parameter_count(self) -> int:
        """Return the number of parameters, the tied embedding counted once."""
        return sum(parameter.numel() for parameter in self.parameters())


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)


def _rotations(shape: Shape) -> tuple[Tensor, Tensor]:
    exponents = torch.arange(0, shape.head_width, 2, dtype=torch.float32) / shape.head_width
    angles = torch.outer(torch.arange(shape.context), shape.rotary_base**-exponents)
    doubled = torch.cat((angles, angles), dim=-1)
    return doubled.cos(), doubled.sin()


def _rotated(vector: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    cosine, sine = rotation
    first, second = vector.chunk(2, dim=-1)
    turned = torch.cat((-second, first), dim=-1)
    return (vector * cosine + turned * sine).to(vector.dtype)
