"""A folder for files that are not what they should be: out of the way of whatever loads models, with the reason beside them."""

import logging
import shutil
from collections.abc import Iterable
from pathlib import Path

from .index import StoredFile

logger = logging.getLogger(__name__)


class Quarantine:
    """The folder, made when it is first needed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def take(self, files: Iterable[StoredFile], reason: str) -> tuple[StoredFile, ...]:
        """Move the files here, links with what they point to, and note why."""
        return tuple(self._take(file, reason) for file in files)

    def _take(self, file: StoredFile, reason: str) -> StoredFile:
        source = Path(file.path)
        target = self._folder / f"{file.sha256[:12]}-{source.name}"
        try:
            if source.parent == self._folder or not source.exists():
                return file  # It is here already, or on a disk that may come back.
            self._folder.mkdir(parents=True, exist_ok=True)
            target.with_name(f"{target.name}.reason.txt").write_text(f"{file.path}\n{reason}\n", encoding="utf-8")
            shutil.move(source.resolve(), target)
            source.unlink(missing_ok=True)
        except OSError as error:
            # A full or a read-only disk: the file stays where it is, and the list of models keeps it from being loaded.
            logger.warning("%s cannot be moved to %s: %s", source, self._folder, error)
            return file
        return file.model_copy(update={"path": str(target)})
