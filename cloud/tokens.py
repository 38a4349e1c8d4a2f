"""Bearer tokens of a gateway's callers: in a file that only its owner can read, or in the environment."""

import os
import re
import secrets
import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path

from ..protocols import ConfigError
from ..protocols.tokens import token_digest

TOKENS_VARIABLE = "NEARFAR_GATEWAY_TOKENS"
_CALLER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


def load_tokens(path: Path) -> dict[str, str]:
    """The digests of the tokens in the TOML file `path`, by caller: lines such as `laptop = "sha256:..."`, or with the token itself.

    Raises `ConfigError` if the file is missing, malformed, readable by others, or without a token: that would let everybody in.
    """
    tokens = read_tokens(path)
    if not tokens:
        raise ConfigError(f"{path} holds no token", hint="make one with `nearfar serve add-token`")
    return tokens


def read_tokens(path: Path) -> dict[str, str]:
    """The same for servers that let nobody in where there is no token."""
    try:
        mode = path.stat().st_mode
        text = path.read_text(encoding="utf-8")
        tokens = tomllib.loads(text)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the tokens in {path} cannot be read: {error}", hint="create the file with `add_token`") from error
    except tomllib.TOMLDecodeError:
        # The parser's message may quote a token.
        raise ConfigError(f"{path} is not TOML", hint='write one line per caller: laptop = "token"') from None
    if os.name == "posix" and mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigError(f"others can read the tokens in {path}", hint=f"chmod 600 {path}, and replace the tokens if they were seen")
    return {caller: token_digest(token) for caller, token in _checked(tokens, str(path)).items()}


def environment_tokens() -> dict[str, str]:
    """The tokens in NEARFAR_GATEWAY_TOKENS (`laptop=token,phone=token`), by caller; empty if it is not set."""
    pairs = [pair.partition("=") for pair in os.environ.get(TOKENS_VARIABLE, "").split(",") if pair.strip()]
    tokens = {caller.strip(): token.strip() for caller, _, token in pairs}
    if len(tokens) != len(pairs):
        raise ConfigError(f"{TOKENS_VARIABLE}: a caller is named twice", hint="give each caller one token")
    return _checked(tokens, TOKENS_VARIABLE)


def add_token(path: Path, caller: str) -> str:
    """Make a token for `caller`, add its digest to `path` and return it: nobody can read it there again.

    The file is created readable by its owner only.

    Raises `ConfigError` if the caller has one already.
    """
    tokens = read_tokens(path) if path.exists() else {}
    if caller in tokens:
        raise ConfigError(f"caller {caller!r} has a token in {path}", hint="delete its line first, which locks the old token out")
    token = secrets.token_hex(32)
    _checked({caller: token}, str(path))
    line = f'{caller} = "{token_digest(token)}"\n'
    if tokens and not path.read_text(encoding="utf-8").endswith("\n"):  # as some editors leave the last line
        line = f"\n{line}"
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "w", encoding="utf-8") as file:
        file.write(line)
    return token


def _checked(tokens: Mapping[str, object], where: str) -> dict[str, str]:
    checked: dict[str, str] = {}
    # Entries are told by their position: where the name should be, a token may stand.
    for position, (caller, token) in enumerate(tokens.items(), 1):
        if not _CALLER.fullmatch(caller):
            raise ConfigError(f"{where}: entry {position} does not begin with a caller's name", hint="use letters, digits, - and _")
        if not isinstance(token, str) or len(token) < 16:
            raise ConfigError(
                f"{where}: the token of entry {position} is missing or too short",
                hint='write caller = "token", the token at least 16 characters, better 64 hex digits',
            )
        checked[caller] = token
    if len({token_digest(token) for token in checked.values()}) != len(checked):
        raise ConfigError(f"{where}: two callers share a token", hint="give each its own, so that the log can tell them apart")
    return checked
