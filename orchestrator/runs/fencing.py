"""Reject writes from a process whose lease on the run has expired."""

from ...protocols import RunBusy
from ..storage.tables import Session
from .run import Lease


def held(session: Session, lease: Lease, *, steps: int = 0) -> bool:
    """Check the lease and lock it for the whole transaction; add to the run's steps. Return whether the run is to be cancelled.

    Raises `RunBusy` if another process has taken the run over.
    """
    statement = "UPDATE runs SET steps = steps + ? WHERE run = ? AND epoch = ? AND owner IS NOT NULL RETURNING is_cancelled"
    found = session.execute(statement, (steps, lease.run, lease.epoch)).fetchone()
    if found is None:
        raise RunBusy(f"run {lease.run} was taken over by another process", hint="this one writes nothing more into it")
    return bool(found[0])
