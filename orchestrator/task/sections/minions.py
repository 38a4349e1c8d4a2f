"""The `[policy.minions]` section."""

from typing import Self

from pydantic import Field, model_validator

from ....protocols.messages import Value


class MinionsConfig(Value):
    """How `minions` reads a long context: the `[policy.minions]` section of nearfar.toml. The defaults are those of MinionS
    (arXiv 2502.15964), unless a limit of this device's work asks for less.
    """

    maximum_rounds: int = Field(default=3, ge=1, le=20)
    """Most rounds of jobs, 1 to 20; after the last one the far side has to answer."""
    maximum_jobs: int = Field(default=8, gt=0)
    """Most jobs per round; each is done on every chunk."""
    maximum_readings: int = Field(default=2048, gt=0)
    """Most readings (jobs times chunks) per round, each a call of the near agent; with many chunks fewer jobs are allowed."""
    chunk_characters: int = Field(default=3000, ge=100)
    """Most characters of a chunk; it ends with a paragraph or a sentence if possible."""
    overlap_characters: int = Field(default=20, ge=0)
    """Characters that a chunk repeats of the one before, at most half of a chunk."""
    parallel: int = Field(default=8, gt=0)
    """Most readings at a time, limited by the near agent's own parallelism."""
    finding_tokens: int = Field(default=300, gt=0)
    """Most tokens of one reading, so that a small model that cannot stop does not block the others."""
    findings_characters: int = Field(default=24_000, gt=0)
    """Most characters of findings that the far side is shown per round; it is told how much was left out."""

    @model_validator(mode="after")
    def _chunks_advance(self) -> Self:
        if self.overlap_characters > self.chunk_characters // 2:
            raise ValueError("overlap_characters must be at most half of chunk_characters")
        return self
