"""`MinionsConfig`: how `minions` cuts a long context, and what it may spend on it."""

from typing import Self

from pydantic import Field, model_validator

from ....protocols.messages import Value


class MinionsConfig(Value):
    """How `minions` works: the `[policy.minions]` section of nearfar.toml. The defaults are those of MinionS (arXiv 2502.15964), except
    where a bound on this device's work asks for less."""

    maximum_rounds: int = Field(default=3, ge=1, le=20)
    """Rounds of jobs; after the last one the far side has to answer."""
    maximum_jobs: int = Field(default=8, gt=0)
    """Jobs per round; each is done on every chunk."""
    maximum_readings: int = Field(default=2048, gt=0)
    """Readings (jobs times chunks) per round, each a call of the near agent; with many chunks fewer jobs are allowed."""
    chunk_characters: int = Field(default=3000, ge=100)
    """Characters of a chunk at most; it ends with a paragraph or a sentence where it can."""
    overlap_characters: int = Field(default=20, ge=0)
    """Characters that a chunk repeats of the one before, at most half of a chunk."""
    parallel: int = Field(default=8, gt=0)
    """Readings at a time; never more than the near agent makes progress on."""
    finding_tokens: int = Field(default=300, gt=0)
    """Tokens of one reading at most, so that a small model that cannot stop does not hold up the others."""
    findings_characters: int = Field(default=24_000, gt=0)
    """Characters of findings that the far side is shown per round; what does not fit is left out, and it is told how much that was."""

    @model_validator(mode="after")
    def _chunks_advance(self) -> Self:
        if self.overlap_characters > self.chunk_characters // 2:
            raise ValueError("overlap_characters must be at most half of chunk_characters")
        return self
