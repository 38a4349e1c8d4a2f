"""Tasks on which two agents differ: both can add, and one alone knows books."""

from collections.abc import Sequence

import numpy

from nearfar.orchestrator.routing.training import Examples
from nearfar.orchestrator.util.embedding import MiniLmEmbedder

AGENTS = ("near", "far")
SUM, BOOK = "What is {0} plus {1}?", "Who wrote the novel of the {0} and the {1} castles?"
SUMS, BOOKS = "arithmetic/sums", "knowledge/books"


def examples(count: int, *, embedder: MiniLmEmbedder | None, classes: bool = True, seed: int = 0) -> Examples:
    """Sums and books in turns. One outcome in ten is not as expected."""
    random = numpy.random.default_rng(seed)
    prompts = [(SUM, BOOK)[place % 2].format(*random.integers(10, 1000, 2)) for place in range(count)]
    right = numpy.array([(1.0, 1.0) if place % 2 == 0 else (0.0, 1.0) for place in range(count)])
    turned = random.random(right.shape) < 0.1
    return Examples(
        prompts,
        AGENTS,
        numpy.where(turned, 1 - right, right).astype(numpy.float32),
        embedder.early_all(prompts) if embedder is not None else None,
        [(SUMS, BOOKS)[place % 2] for place in range(count)] if classes else (),
    )


def asked(kind: str, count: int = 20) -> Sequence[str]:
    """Other prompts of a kind."""
    numbers = numpy.random.default_rng(1).integers(10, 1000, (count, 2))
    return [kind.format(*pair) for pair in numbers]
