"""The `nearfar serve token` group: whom servers let in. As in the package itself, each command loads what it needs when it runs."""

from pathlib import Path
from typing import Annotated

import typer

from . import options

token = typer.Typer(help="Make, list, replace and revoke the tokens that callers of a server need.", no_args_is_help=True)

Caller = Annotated[str, typer.Argument(help="Name of the device or person that the token is for.")]
TokenFile = Annotated[Path, typer.Option("--tokens", help="The token file of the server; `add` creates it.")]
Scopes = Annotated[
    list[str] | None, typer.Option("--scope", help="What it is good for: describe, steps, memory or attach; may be repeated.")
]
Lifetime = Annotated[str, typer.Option("--expires", help="After this time it is worth nothing: 12h, 30d, 8w. For ever unless given.")]
_DEFAULT_FILE = Path("tokens.toml")


@token.command("add")
def add_token(
    caller: Caller,
    tokens: TokenFile = _DEFAULT_FILE,
    scope: Scopes = None,
    expires: Lifetime = "",
    certificate: Annotated[
        str, typer.Option(help="PEM file of a client's certificate that stands in place of a token; `any`: each one that names the caller.")
    ] = "",
    as_json: options.AsJson = False,
) -> None:
    """Make a token for a caller and print it, this once. Unless scopes are given, it lets its caller ask the agents of a server."""
    from .token_records import add_caller, certify_caller

    if certificate:
        certify_caller(caller, tokens, certificate, scopes=scope, expires=expires, as_json=as_json)
    else:
        add_caller(caller, tokens, scopes=scope, expires=expires, as_json=as_json)


@token.command("list")
def list_tokens(tokens: TokenFile = _DEFAULT_FILE, as_json: options.AsJson = False) -> None:
    """Print whose tokens there are, what they are good for and until when."""
    from .token_records import list_tokens as run

    run(tokens, as_json=as_json)


@token.command("rotate")
def rotate_token(
    caller: Caller,
    tokens: TokenFile = _DEFAULT_FILE,
    overlap: Annotated[str, typer.Option(help="How long the former token is still good: 90m, 1d; 0 ends it at once.")] = "1d",
    scope: Scopes = None,
    expires: Lifetime = "",
    as_json: options.AsJson = False,
) -> None:
    """Make another token for a caller and print it, this once. The former one is still good for a while, so that nobody is locked out.

    Scopes and time to live are those of the former one, unless they are given.
    """
    from .token_records import rotate_caller

    rotate_caller(caller, tokens, overlap=overlap, scopes=scope, expires=expires, as_json=as_json)


@token.command("revoke")
def revoke_token(
    caller: Caller,
    tokens: TokenFile = _DEFAULT_FILE,
    id: Annotated[str, typer.Option(help="The one token to revoke, as `list` shows it; all of the caller's unless given.")] = "",
    as_json: options.AsJson = False,
) -> None:
    """Take a caller's tokens away. Running servers notice within a second or two, and end what its caller has running with them."""
    from .token_records import revoke_caller

    revoke_caller(caller, tokens, id=id, as_json=as_json)
