"""Opening the store of runs that a configuration names."""

from .settings import RunsConfig
from .store import RunStore


def open_store(config: RunsConfig) -> RunStore:
    """The store of a `[runs]` section. Raises `ConfigError` where no address is set, `StoreUnavailable` or `StoreCorrupt`."""
    if config.postgres_variable is None:
        return RunStore.open(config)
    from ..compose import secret

    return RunStore.open(config, address=secret(config.postgres_variable))
