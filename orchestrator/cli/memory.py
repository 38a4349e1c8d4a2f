"""The `nearfar memory` group. Each command loads what it needs when it runs."""

from pathlib import Path
from typing import Annotated

import typer

from . import options

memory = typer.Typer(help="See, correct, move, synchronise and erase what this device remembers.", no_args_is_help=True)

Store = Annotated[
    str | None,
    typer.Option("--store", help="SQLite file or postgres://...; not given: as nearfar.toml says, or memory/memory.db in $NEARFAR_HOME."),
]
NamespaceArgument = Annotated[str, typer.Argument(metavar="NAMESPACE", help="Labels with / between them, such as notes/ana.")]
KeyArgument = Annotated[str, typer.Argument(metavar="KEY", help="The item's name in its namespace.")]
Prefix = Annotated[str, typer.Option("--namespace", "-n", help="Only what is in or below this namespace, such as notes/ana.")]
TierName = Annotated[str | None, typer.Option("--tier", help="Only items that may go this far: device, user or shared.")]
Limit = Annotated[int, typer.Option(min=1, help="Items at most.")]
Offset = Annotated[int, typer.Option(min=0, help="Items to pass over first.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would happen, and change nothing.")]


@memory.command("list")
def list_items(
    namespace: Prefix = "",
    tier: TierName = None,
    limit: Limit = 20,
    offset: Offset = 0,
    store: Store = None,
    config: options.Config = None,
    as_json: options.AsJson = False,
) -> None:
    """List items, the last changed first."""
    from .memory_items import Wanted
    from .memory_items import list_items as show

    show(Wanted(namespace, tier, limit, offset), options.StoreChoice(store, config), as_json=as_json)


@memory.command("search")
def search(
    query: Annotated[str, typer.Argument(help="Words, or a question.")],
    namespace: Prefix = "",
    tier: TierName = None,
    mode: Annotated[str, typer.Option(help="hybrid, keyword or semantic.")] = "hybrid",
    limit: Limit = 10,
    offset: Offset = 0,
    store: Store = None,
    config: options.Config = None,
    as_json: options.AsJson = False,
) -> None:
    """Find items by words and by meaning, the best first."""
    from .memory_items import Wanted, search_items

    search_items(query, mode, Wanted(namespace, tier, limit, offset), options.StoreChoice(store, config), as_json=as_json)


@memory.command("show")
def show(
    namespace: NamespaceArgument, key: KeyArgument, store: Store = None, config: options.Config = None, as_json: options.AsJson = False
) -> None:
    """Show an item whole: its value, where it came from, how far it may go, what it was before, and what it lost against."""
    from .memory_items import show_item

    show_item(namespace, key, options.StoreChoice(store, config), as_json=as_json)


@memory.command("edit")
def edit(
    namespace: NamespaceArgument,
    key: KeyArgument,
    value: Annotated[str | None, typer.Option(help="The new value, a JSON object; - reads it from standard input.")] = None,
    fields: Annotated[
        list[str] | None, typer.Option("--set", help="FIELD=VALUE, as JSON or as plain text; may be repeated. Other fields stay.")
    ] = None,
    tier: Annotated[str | None, typer.Option(help="How far it may go from now on: device, user or shared.")] = None,
    store: Store = None,
    config: options.Config = None,
    as_json: options.AsJson = False,
) -> None:
    """Change an item, or write a new one: in $EDITOR, or as the options say. What somebody else wrote meanwhile is not overwritten."""
    from .memory_edit import Edit, edit_item

    edit_item(namespace, key, Edit(value, tuple(fields or ()), tier), options.StoreChoice(store, config), as_json=as_json)


@memory.command("delete")
def delete(
    namespace: NamespaceArgument, key: KeyArgument, store: Store = None, config: options.Config = None, as_json: options.AsJson = False
) -> None:
    """Delete an item, here and, with the next sync, on your other devices. To leave no trace of something, `erase` it."""
    from .memory_edit import delete_item

    delete_item(namespace, key, options.StoreChoice(store, config), as_json=as_json)


@memory.command("conflicts")
def conflicts(
    namespace: Annotated[str, typer.Argument(help="Of the item to look at; all with conflicts unless given.")] = "",
    key: Annotated[str, typer.Argument(help="Of the item to look at.")] = "",
    keep: Annotated[str | None, typer.Option(help="What is to stand: `present`, or the number of a value that lost.")] = None,
    limit: Limit = 20,
    offset: Offset = 0,
    store: Store = None,
    config: options.Config = None,
    as_json: options.AsJson = False,
) -> None:
    """Show values that lost against a change made elsewhere at the same time, side by side, and decide on them."""
    from .memory_conflicts import list_conflicts, settle_conflict

    choice = options.StoreChoice(store, config)
    if namespace or key or keep is not None:
        settle_conflict(namespace, key, keep, choice, as_json=as_json)
    else:
        list_conflicts(choice, limit=limit, offset=offset, as_json=as_json)


@memory.command("export")
def export_items(
    file: Annotated[str, typer.Argument(help="A file that does not exist yet, readable by you alone; - for standard output.")],
    namespace: Prefix = "",
    tier: TierName = None,
    store: Store = None,
    config: options.Config = None,
    as_json: options.AsJson = False,
) -> None:
    """Write items to a file, one JSON object in each line, with where they came from."""
    from .memory_files import export_to

    export_to(file, namespace, tier, options.StoreChoice(store, config), as_json=as_json)


@memory.command("import")
def import_items(
    file: Annotated[str, typer.Argument(help="What `export` wrote; - for standard input.")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace items that say something else here.")] = False,
    dry_run: DryRun = False,
    store: Store = None,
    config: options.Config = None,
    as_json: options.AsJson = False,
) -> None:
    """Take in items from a file. All lines are checked first; what differs here already stays, and is told."""
    from .memory_files import import_from

    import_from(file, options.StoreChoice(store, config), overwrite=overwrite, dry_run=dry_run, as_json=as_json)


@memory.command("erase")
def erase(
    subject: Annotated[str, typer.Option(help="Erase all that is about them, wherever it stands.")] = "",
    prefix: Annotated[str, typer.Option(help="Erase all that is in or below this namespace, such as notes/ana.")] = "",
    yes: Yes = False,
    dry_run: DryRun = False,
    store: Store = None,
    config: options.Config = None,
    as_json: options.AsJson = False,
) -> None:
    """Remove items such that no file holds a trace of them, here and, with the next sync, on your other devices. It cannot be undone."""
    from .memory_erase import erase_items

    erase_items(subject, prefix, options.StoreChoice(store, config), yes=yes, dry_run=dry_run, as_json=as_json)


@memory.command("sync")
def sync(
    peer: Annotated[str, typer.Argument(help="Name of a [memory.peers] section, or HOST:PORT; may be left out if there is only one.")] = "",
    token: Annotated[str, typer.Option(envvar="NEARFAR_TOKEN", help="By which the peer knows this device; better in $NEARFAR_TOKEN.")] = "",
    certificate: Annotated[Path | None, typer.Option(help="PEM file of the peer's certificate, or of who signed it.")] = None,
    client_certificate: options.ClientCertificate = None,
    client_key: options.ClientKey = None,
    pairing_file: Annotated[str, typer.Option(help="File with the line that `worker pair` shows, or - to paste it.")] = "",
    yes: Yes = False,
    dry_run: DryRun = False,
    store: Store = None,
    config: options.Config = None,
    as_json: options.AsJson = False,
) -> None:
    """Bring this memory and another one into step. Before the first time, say what would leave this device, and ask."""
    from .memory_sync import Way, sync_with

    way = Way(peer, token, certificate, pairing_file, client_certificate, client_key)
    sync_with(way, options.StoreChoice(store, config), yes=yes, dry_run=dry_run, as_json=as_json)


@memory.command("revoke")
def revoke(
    device: Annotated[str, typer.Argument(help="As `stats` names it.")],
    yes: Yes = False,
    store: Store = None,
    config: options.Config = None,
    as_json: options.AsJson = False,
) -> None:
    """Shut a lost device out: no device that hears of it synchronises with it any more. What it wrote stays."""
    from .memory_sync import revoke_device

    revoke_device(device, options.StoreChoice(store, config), yes=yes, as_json=as_json)


@memory.command("stats")
def stats(store: Store = None, config: options.Config = None, as_json: options.AsJson = False) -> None:
    """Say how much there is, of what tier and from whom, and what waits for something."""
    from .memory_stats import show_stats

    show_stats(options.StoreChoice(store, config), as_json=as_json)


@memory.command("recover")
def recover(store: Store = None, config: options.Config = None, yes: Yes = False, as_json: options.AsJson = False) -> None:
    """Save what can be read of a damaged file into a new one in its place. The damaged one is kept beside it."""
    from .memory_recover import recover_store

    recover_store(options.StoreChoice(store, config), yes=yes, as_json=as_json)
