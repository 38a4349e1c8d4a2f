"""Open the store of runs that a configuration names."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from functools import partial
from typing import Protocol, TypeVar

from ..task.stores import RunsConfig
from .store import RunStore


class _Closable(Protocol):
    def close(self) -> None: ...


T = TypeVar("T", bound=_Closable)


def open_or_given(
    runs: RunStore | RunsConfig | None, given: T | RunsConfig | None, open_in: Callable[[RunsConfig], T | None], closes: ExitStack
) -> T | None:
    """Return `given`, or open it where the runs are kept and close it with `closes`."""
    config = runs if given is None and isinstance(runs, RunsConfig) else given
    if not isinstance(config, RunsConfig):
        return config
    opened = open_in(config)
    if opened is not None:
        closes.callback(opened.close)
    return opened


def open_store(config: RunsConfig) -> RunStore:
    """Open the store of a `[runs]` section. Raises `ConfigError` if no address is set, `StoreUnavailable` or `StoreCorrupt`.

    A forgotten run's trace, privacy record and budget are forgotten with it.
    """
    store = RunStore.open(config, address=address_of(config) if config.postgres_variable is not None else None)
    store.forgetting += [partial(erase, config) for erase in (_erase_traces, _erase_privacy, _erase_budgets)]
    return store


def address_of(config: RunsConfig) -> str:
    """Return the address of the database that a `[runs]` section names. Raises `ConfigError` where none is set."""
    from ..util.credentials import secret

    assert config.postgres_variable is not None, "the caller has looked"
    return secret(config.postgres_variable)


def _erase_traces(config: RunsConfig, runs: Sequence[str]) -> None:
    from ..tracing.store import erase_traces

    erase_traces(config, runs)


def _erase_privacy(config: RunsConfig, runs: Sequence[str]) -> None:
    from ..safety.privacy_records import PrivacyRecords

    if (config.folder / "privacy.db").exists():
        with closing(PrivacyRecords(config.folder, keep=config.keep)) as records:
            for run in runs:
                records.forget(run)
            records.database.scrub()


def _erase_budgets(config: RunsConfig, runs: Sequence[str]) -> None:
    """Forget the budgets of runs, since names of tasks are the app's own words."""
    from ..budgets.book import open_budgets

    if config.postgres_variable is not None or (config.folder / "budgets.db").exists():
        with closing(open_budgets(config)) as book:
            book.forget_tasks(runs)
