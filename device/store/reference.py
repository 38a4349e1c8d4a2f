"""`hf:owner/repo:FILE-or-QUANT`: which repository, and which of its files."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Self

from ...protocols import ConfigError, ModelNotFound
from ..gguf import PART

PREFIX: Final = "hf:"
_REFERENCE: Final = re.compile(r"hf:(?P<repository>[\w.-]+/[\w.-]+)(?::(?P<selector>[^\\\s]*))?", re.ASCII)
_QUANT: Final = re.compile(r"(?:^|[-._/])((?:UD-)?(?:I?Q\d+\w*|TQ\d_\d|MXFP4\w*|NVFP4\w*|BF16|F16|FP16|F32))(?=$|[-._/])", re.IGNORECASE)
_NO_MODEL: Final = re.compile(r"(^|/)(mmproj|imatrix)", re.IGNORECASE)
"""Image encoders and calibration data, which lie next to the models they belong to."""


@dataclass(frozen=True, slots=True)
class HubReference:
    """A model of a Hugging Face repository."""

    repository: str
    selector: str
    """A file's name, or a quantisation as it stands in one, such as `Q8_0`; empty: the only one there is."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises `ConfigError` if it is none."""
        match = _REFERENCE.fullmatch(text)
        if match is None or ".." in text:
            raise ConfigError(f"{text!r} does not name a model of a repository", hint="write hf:OWNER/REPOSITORY:QUANT, or :FILE.gguf")
        return cls(match["repository"], match["selector"] or "")

    def __str__(self) -> str:
        return f"{PREFIX}{self.repository}:{self.selector}" if self.selector else f"{PREFIX}{self.repository}"

    def select(self, names: Iterable[str]) -> tuple[str, ...]:
        """Choose the files of the model among all files of the repository: one, or the parts of a split model in order.

        Raises `ModelNotFound` if there is none, and `ConfigError` if several models fit; both name those that there are.
        """
        models = models_among(names)
        if not models:
            hint = "repositories with GGUF files mostly have names that end in -GGUF"
            raise ModelNotFound(f"{PREFIX}{self.repository} has no GGUF file", hint=hint)
        fitting = [files for title, files in models.items() if self._fits(title, files)]
        there_are = f"there are {', '.join(sorted(labels_of(models).values()))}"
        if not fitting:
            raise ModelNotFound(f"{PREFIX}{self.repository} has no {self.selector!r}", hint=there_are)
        if len(fitting) > 1:
            raise ConfigError(f"{self} fits {len(fitting)} models", hint=f"name one of them: {there_are}")
        return _complete(fitting[0])

    def means(self, file: str) -> bool:
        """Return True if the reference fits the model whose first or only file this is."""
        return any(self._fits(title, files) for title, files in models_among([file]).items())

    def _fits(self, title: str, files: Sequence[str]) -> bool:
        if self.selector.lower().endswith(".gguf"):
            return any(self.selector in (name, name.rpartition("/")[2]) for name in files)
        return not self.selector or self.selector.lower() in (quant_of(title).lower(), title.lower())


def models_among(names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Group a repository's files by model: names without number and suffix, each with one file, or several if it is split."""
    models: dict[str, list[str]] = {}
    for name in sorted(names):
        if name.lower().endswith(".gguf") and not _NO_MODEL.search(name):
            part = PART.fullmatch(name)
            models.setdefault(part["stem"] if part else name[: -len(".gguf")], []).append(name)
    return {title: tuple(files) for title, files in models.items()}


def quant_of(title: str) -> str:
    """Return the quantisation in a model's name, else the name."""
    found = _QUANT.findall(title)
    return str(found[-1]) if found else title


def labels_of(titles: Iterable[str]) -> dict[str, str]:
    """Label a repository's models so that they can be told apart: by quantisation, or by the whole name if several have the same one."""
    quants = {title: quant_of(title) for title in titles}
    counts = Counter(quants.values())
    return {title: quant if counts[quant] == 1 else title for title, quant in quants.items()}


def _complete(files: tuple[str, ...]) -> tuple[str, ...]:
    part = PART.fullmatch(files[0])
    if part is not None and len(files) != int(part["count"]):
        raise ModelNotFound(f"{part['stem']} has {len(files)} of {int(part['count'])} parts", hint="the repository is incomplete")
    return files
