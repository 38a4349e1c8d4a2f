"""Hugging Face's cache on disk, in the layout that its own programs use, so that no file is fetched or kept twice.

The layout: https://huggingface.co/docs/huggingface_hub/guides/manage-cache
"""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_NAME_BYTES: Final = 255
"""Of one part of a path, on all file systems in use."""


def stays_inside(name: str) -> bool:
    """Whether a name with slashes, of a file or a revision, leads nowhere but below the folder that it is taken for."""
    parts = name.split("/")
    try:
        is_short = all(len(part.encode()) <= _NAME_BYTES for part in parts)
    except UnicodeEncodeError:  # half of a pair of surrogates, which JSON can hold and a name cannot
        return False
    return is_short and not {"", ".", ".."} & set(parts) and "\\" not in name and "\0" not in name


def content_of(path: Path) -> Path | None:
    """Return where the content of a file in a cache lies. None: the file, or what it links to, is outside of its repository.

    Such a file is not for the store to move or delete: somebody else put it, or the link to it, there.
    """
    snapshots = next((parent for parent in path.parents if parent.name == "snapshots"), None)
    if snapshots is None:
        return None
    content = path.resolve()
    if path.is_symlink():
        return content if content.parent == (snapshots.parent / "blobs").resolve() else None
    return content if content.is_relative_to(snapshots.resolve()) else None


class HubCache:
    """The cache in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def blob(self, repository: str, etag: str) -> Path:
        """Where content lies, or would."""
        return self._repository(repository) / "blobs" / etag

    def partial(self, repository: str, name: str, etag: str) -> Path:
        """Where content grows until it is complete: in a folder that nothing else reads."""
        flat = name.replace("/", "--")
        if len(flat.encode()) + 1 + len(etag) > _NAME_BYTES:
            flat = hashlib.sha256(flat.encode()).hexdigest()
        return self._growing(repository) / f"{flat}.{etag}"

    def forget_partials(self, repository: str, name: str, *, but: str) -> None:
        """Delete what was fetched of other versions of the file."""
        keep = self.partial(repository, name, but)
        for path in self._growing(repository).iterdir():
            if path.stem == keep.stem and path != keep and path.suffix != ".lock":
                path.unlink(missing_ok=True)

    def keep(self, partial: Path, repository: str, etag: str) -> None:
        """Make complete content part of the cache, at once or not at all."""
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        blob = self.blob(repository, etag)
        blob.parent.mkdir(parents=True, exist_ok=True)
        partial.replace(blob)

    def link(self, repository: str, commit: str, name: str, etag: str) -> Path:
        """The file under its own name, a link to its content."""
        path = self._repository(repository) / "snapshots" / commit / name
        path.parent.mkdir(parents=True, exist_ok=True)
        target = os.path.relpath(self.blob(repository, etag), path.parent)
        if not path.exists():
            path.unlink(missing_ok=True)  # A link may have lost its content.
            path.symlink_to(target)
        return path

    def note_revision(self, repository: str, revision: str, commit: str) -> None:
        path = self._repository(repository) / "refs" / revision
        if revision != commit:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(commit, encoding="utf-8")

    def commit(self, repository: str, revision: str) -> str | None:
        """The commit that `revision` was when it was last looked up; None: unknown."""
        folder = self._repository(repository)
        try:
            return (folder / "refs" / revision).read_text(encoding="utf-8").strip()
        except OSError:
            return revision if (folder / "snapshots" / revision).is_dir() else None

    def files(self, repository: str, commit: str) -> Iterator[tuple[str, int, str]]:
        """Name, size and etag of each complete file."""
        folder = self._repository(repository) / "snapshots" / commit
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                yield path.relative_to(folder).as_posix(), path.stat().st_size, path.resolve().name

    def _repository(self, repository: str) -> Path:
        return self._folder / f"models--{repository.replace('/', '--')}"

    def _growing(self, repository: str) -> Path:
        return self._repository(repository) / ".incomplete"
