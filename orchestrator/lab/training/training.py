"""Training a head of the router on recorded outcomes, with torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ...routing.head import Blend, HeadPart
from ...routing.training import ClassLogits, Examples, fit_classes, folds_of
from .blend import fit_blend
from .likeness import LikenessPart, fit_likeness
from .words import Features, WordsPart, fit_words, words_logits

if TYPE_CHECKING:
    from ...routing.training import Floats

FOLDS: Final = 3
"""In which the words part predicts what it has not seen."""


@dataclass(frozen=True, slots=True)
class Parts:
    """A trained head."""

    agents: tuple[str, ...]
    prompts: int
    """It was trained on."""
    words: WordsPart
    likeness: LikenessPart | None
    """None: it was trained without embeddings."""
    classes: ClassLogits
    """Empty: it was trained without classes."""
    blends: tuple[Blend, ...]
    """Blends of the words with each choice of the other parts, for a prompt whose class is unknown or which is not embedded."""


def train_head(examples: Examples, *, seed: int = 0) -> Parts:
    """Fit each part, and how they are put together, on what they say of prompts that they have not seen.

    Raises `ConfigError` for fewer than 20 prompts, or an agent whose outcomes are all missing or all the same.
    """
    examples.check()
    return fit_head(examples, seed=seed)


def fit_head(examples: Examples, *, seed: int) -> Parts:
    """Fit a head without checking the examples, as for the folds of a cross-validation."""
    import numpy

    features = Features.of(examples.prompts)
    unseen = {HeadPart.WORDS: _unseen_words(features, examples, seed)}
    alone = fit_blend(unseen, examples.outcomes)
    likeness: LikenessPart | None = None
    classes: ClassLogits = {}
    if examples.embeddings is not None:
        offset = unseen[HeadPart.WORDS] / numpy.float32(alone.temperature) + numpy.array(alone.bias, dtype=numpy.float32)
        likeness, unseen[HeadPart.LIKENESS] = fit_likeness(examples.embeddings, features.surface, examples.outcomes, offset, seed)
    if any(examples.classes):
        classes, unseen[HeadPart.CLASS] = fit_classes(examples.classes, examples.outcomes)
    return Parts(
        agents=tuple(examples.agents),
        prompts=len(examples.prompts),
        words=fit_words(features, examples.outcomes),
        likeness=likeness,
        classes=classes,
        blends=tuple(fit_blend({part: unseen[part] for part in chosen}, examples.outcomes) for chosen in _choices(unseen)),
    )


def _unseen_words(features: Features, examples: Examples, seed: int) -> "Floats":
    """Return the words part's log-odds of each prompt, trained on the other folds."""
    import numpy

    folds = folds_of(examples.prompts, FOLDS, seed)
    logits = numpy.zeros(examples.outcomes.shape, dtype=numpy.float32)
    for fold in range(FOLDS):
        held, known = numpy.flatnonzero(folds == fold), numpy.flatnonzero(folds != fold)
        logits[held] = words_logits(fit_words(features.part(known), examples.outcomes[known]), features.part(held))
    return logits


def _choices(parts: "Mapping[HeadPart, Floats]") -> list[tuple[HeadPart, ...]]:
    """Return the choices of parts: the words with none, each and all of the other available parts."""
    choices: list[tuple[HeadPart, ...]] = [(HeadPart.WORDS,)]
    for part in (HeadPart.LIKENESS, HeadPart.CLASS):
        if part in parts:
            choices += [(*chosen, part) for chosen in choices]
    return choices
