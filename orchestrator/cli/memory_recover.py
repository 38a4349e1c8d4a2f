"""`nearfar memory recover`."""

from dataclasses import asdict

from ...protocols import ConfigError, NotFound
from ..compose.memory import memory_path, recover_memory
from .console import agreed, notes, output, print_json, reported, working
from .memory_store import chosen_memory, is_postgres
from .memory_text import counted
from .options import StoreChoice


def recover_store(choice: StoreChoice, *, yes: bool, as_json: bool) -> None:
    """Put what can be read of the file into a new one, in its place."""
    with reported(as_json=as_json):
        config = chosen_memory(choice)
        path = memory_path(config)
        if path is None or (choice.store is not None and is_postgres(choice.store)):
            raise ConfigError(
                "a Postgres database is recovered with its own tools", hint="restore it from a backup; `recover` is for files"
            )
        if not path.exists():
            raise NotFound(f"there is no memory at {path}", hint="--store names another file")
        if not yes and not agreed(f"Put what can be read of {path} in its place? The old file is kept beside it.", as_json=as_json):
            return
        with working("reading what can be read", shown=not as_json):
            recovery = recover_memory(config)
    if as_json:
        print_json(asdict(recovery))
        return
    output.print(f"{counted(recovery.items, 'item')} saved; {counted(recovery.unreadable, 'place')} in the file could not be read")
    if recovery.remade:
        notes.print(f"{counted(recovery.remade, 'item')} may say what they said earlier", style="yellow")
    if not recovery.is_same_device:
        notes.print("the device has a new name: what was written before counts as another device's", style="yellow")
    told = f"the damaged file is {recovery.damaged}; it still holds what is erased later, so delete it when it is not needed"
    notes.print(told, style="dim", soft_wrap=True)
