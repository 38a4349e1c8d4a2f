"""Bearer tokens of a gateway's callers in an environment variable, as a simple alternative to a token file."""

import os

from ..protocols import ConfigError
from ..protocols.token_file import CALLER_NAME
from ..protocols.tokens import token_records

TOKENS_VARIABLE = "NEARFAR_GATEWAY_TOKENS"
_SHORTEST = 16
"""Minimum length, in characters, of a token chosen by a person."""


def environment_tokens() -> dict[str, str]:
    """Return the tokens in NEARFAR_GATEWAY_TOKENS (`laptop=token,phone=token`), by caller; empty if it is not set.

    Raise `ConfigError`, which names entries by position: a token may stand where the name should be.
    """
    pairs = [pair.partition("=") for pair in os.environ.get(TOKENS_VARIABLE, "").split(",") if pair.strip()]
    tokens = {caller.strip(): token.strip() for caller, _, token in pairs}
    if len(tokens) != len(pairs):
        raise ConfigError(f"{TOKENS_VARIABLE}: a caller is named twice", hint="give each caller one token")
    for position, (caller, token) in enumerate(tokens.items(), 1):
        if not CALLER_NAME.fullmatch(caller):
            raise ConfigError(f"{TOKENS_VARIABLE}: entry {position} does not begin with a caller's name", hint="write caller=token")
        if len(token) < _SHORTEST:
            raise ConfigError(f"{TOKENS_VARIABLE}: the token of entry {position} is too short", hint="use 64 random hex digits")
    token_records(tokens)
    return tokens
