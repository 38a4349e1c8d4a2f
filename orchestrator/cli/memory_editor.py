"""Handing a value to the user's editor. Its file is readable by them alone, and gone afterwards."""

import os
import shlex
import subprocess
import tempfile
from pathlib import Path

from ...protocols import ConfigError


def edited_text(text: str) -> str:
    """The text as the user leaves it. Raises `ConfigError` where there is no editor, or it fails: then nothing was changed."""
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR")
    if not editor:
        raise ConfigError("there is no editor: neither VISUAL nor EDITOR is set", hint="export EDITOR=nano, or use --set or --value")
    with tempfile.TemporaryDirectory(prefix="nearfar-") as folder:
        path = Path(folder) / "value.json"
        path.write_text(text, encoding="utf-8")
        _run([*shlex.split(editor), str(path)])
        return path.read_text(encoding="utf-8")


def keep_draft(text: str) -> Path:
    """Keep what the user wrote where only they can read it."""
    handle, name = tempfile.mkstemp(prefix="nearfar-", suffix=".json", text=True)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    return Path(name)


def _run(command: list[str]) -> None:
    try:
        code = subprocess.run(command, check=False).returncode
    except OSError as error:
        raise ConfigError(f"the editor cannot be started: {error}", hint="check $VISUAL and $EDITOR") from error
    if code:
        raise ConfigError(f"the editor ended with code {code}, so nothing was changed")
