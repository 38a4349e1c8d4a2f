"""A folder for damaged or unexpected files: out of the way of programs that load models, with the reason in a note next to each."""

import logging
import shutil
from collections.abc import Iterable
from pathlib import Path

from .cache import content_of
from .index import StoredFile

logger = logging.getLogger(__name__)


class Quarantine:
    """The folder, made when it is first needed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def take(self, files: Iterable[StoredFile], reason: str) -> tuple[StoredFile, ...]:
        """Move the files here, links with what they point to, and note why."""
        return tuple(self._take(file, reason) for file in files)

    def delete(self, path: Path) -> None:
        """Delete a file that the store has fetched, with its content in the cache, or a file in quarantine, with its note."""
        content = path if self._holds(path) else content_of(path)
        if content is None:
            logger.warning("%s is not deleted: the file or the target of its link is outside of the cache", path)
            return
        for each in (path, _reason(path)) if self._holds(path) else (content, path):
            each.unlink(missing_ok=True)

    def _holds(self, path: Path) -> bool:
        return path.parent == self._folder

    def _take(self, file: StoredFile, reason: str) -> StoredFile:
        source = Path(file.path)
        target = self._folder / f"{file.sha256[:12]}-{source.name}"
        try:
            if self._holds(source) or not source.exists():
                return file  # It is here already, or on a disk that may come back.
            if (content := content_of(source)) is None:
                logger.warning("%s is not moved to %s: the file or the target of its link is outside of the cache", source, self._folder)
                return file
            self._folder.mkdir(parents=True, exist_ok=True)
            _reason(target).write_text(f"{file.path}\n{reason}\n", encoding="utf-8")
            shutil.move(content, target)
            source.unlink(missing_ok=True)
        except OSError as error:
            # A full or a read-only disk: the file stays where it is, and the list of models keeps it from being loaded.
            logger.warning("%s cannot be moved to %s: %s", source, self._folder, error)
            return file
        return file.model_copy(update={"path": str(target)})


def _reason(path: Path) -> Path:
    """Return the path of the note for a file in quarantine."""
    return path.with_name(f"{path.name}.reason.txt")
