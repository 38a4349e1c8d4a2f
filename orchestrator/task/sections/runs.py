"""The `[runs]` section of nearfar.toml: where runs are kept, and how many of those that ended."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import Field

from ....protocols.messages import Value

VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


def default_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """`runs` below `NEARFAR_HOME`, else below `nearfar` in the user's data folder as the XDG base directory specification names it."""
    if home := environment.get("NEARFAR_HOME"):
        return Path(home).expanduser() / "runs"
    data = environment.get("XDG_DATA_HOME")
    return (Path(data) if data else Path.home() / ".local" / "share") / "nearfar" / "runs"


class RunsConfig(Value):
    """The `[runs]` section: every task is then a run, which another process can go on with."""

    folder: Path = Field(default_factory=default_folder)
    """For its owner alone."""
    postgres_variable: VariableName | None = None
    """Holds `postgres://...` in the environment or the keyring: the database that several orchestrators share."""
    keep: int = Field(default=10_000, ge=0)
    """Runs that ended and can still be looked at; the oldest are forgotten first."""
    keep_days: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Days after which a run that ended is forgotten; None: as long as there are no more than `keep`."""

    def anchored(self, folder: Path) -> "RunsConfig":
        """The same with a relative path made absolute."""
        return self.model_copy(update={"folder": folder / self.folder.expanduser()})
