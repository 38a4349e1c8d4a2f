"""The `[serve]` section: where `nearfar serve http` listens, and what each of its callers may do."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from ...protocols import Sensitivity
from ...protocols.steps import Value
from ..task.modes import Mode
from ..task.routing_policy import LimitsConfig
from .hub import checked_address

CallerName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")]


class CallerConfig(Value):
    """A `[serve.callers.NAME]` section: what a caller may do, by the name that its token has. Its requests can only narrow that."""

    sensitivity: Sensitivity | None = None
    """Sensitivity of its tasks: `public` ones may leave this device. None: as the policy says."""
    mode: Mode | None = None
    """Sides that may serve its tasks. None: as the policy says."""
    limits: LimitsConfig = LimitsConfig()
    """Limits of spending; those of the policy hold, too. `user` is what all its tasks may take together."""
    models: tuple[str, ...] = ()
    """Names of models that it may ask for, such as `nearfar/auto`. None: all."""
    user: str = Field(default="", max_length=200)
    """On whose behalf its tasks are served. Empty: the caller's own."""


class ServeConfig(Value):
    """The `[serve]` section: the HTTP server for clients of OpenAI and Anthropic."""

    address: Annotated[str, AfterValidator(checked_address)] = "127.0.0.1:7446"
    """`host:port` at which it listens. One that other devices can reach needs TLS and tokens."""
    tokens: Path | None = None
    """File with a token for each caller, which is read again when it changes. None: one token is made at each start, and printed."""
    certificate: Path | None = None
    """PEM file of its certificate."""
    key: Path | None = None
    """PEM file of the certificate's private key."""
    hosts: tuple[str, ...] = ()
    """Further names of this server in the `Host` header, such as that of a proxy in front. Addresses and `localhost` need none."""
    origins: tuple[str, ...] = ()
    """Origins of web pages that may call it from a browser, such as `https://app.example`."""
    callers: Mapping[CallerName, CallerConfig] = {}
    """The rights of callers. A caller without a section may do what the policy allows."""

    @model_validator(mode="after")
    def _has_both_files(self) -> Self:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("certificate and key belong together")
        return self

    def anchored(self, folder: Path) -> "ServeConfig":
        """Return the section with its relative paths made absolute, starting at `folder`."""
        files = {name: getattr(self, name) for name in ("tokens", "certificate", "key")}
        return self.model_copy(update={name: folder / file.expanduser() for name, file in files.items() if file is not None})

    def caller(self, name: str) -> CallerConfig:
        """Return what the caller called `name` may do."""
        return self.callers.get(name) or CallerConfig()
