"""The `[runs]` section of nearfar.toml: where runs are stored, and how long."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import Field

from ....protocols.messages import Value

VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


def default_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the default folder: `runs` below `NEARFAR_HOME`, else below `nearfar` in the user's data folder of the XDG base directory
    specification.
    """
    if home := environment.get("NEARFAR_HOME"):
        return Path(home).expanduser() / "runs"
    data = environment.get("XDG_DATA_HOME")
    return (Path(data) if data else Path.home() / ".local" / "share") / "nearfar" / "runs"


class RunsConfig(Value):
    """The store of runs: the `[runs]` section. With it every task is a durable run, which another process can resume."""

    folder: Path = Field(default_factory=default_folder)
    """Folder of the runs, accessible to its owner only; by default in the user's data folder."""
    postgres_variable: VariableName | None = None
    """Name of the variable, in the environment or the keyring, with `postgres://...`: a database that several orchestrators share."""
    keep: int = Field(default=10_000, ge=0)
    """Most ended runs that are kept; the oldest are forgotten first."""
    keep_days: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Days after which an ended run is forgotten; None: only `keep` counts."""

    def anchored(self, folder: Path) -> "RunsConfig":
        """Return the section with a relative path made absolute."""
        return self.model_copy(update={"folder": folder / self.folder.expanduser()})
