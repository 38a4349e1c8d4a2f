"""Find the tools that a plan names."""

import re
from collections.abc import Iterable


def named_tools(plan: str, tools: Iterable[str]) -> frozenset[str]:
    """Return the tools that the plan calls, as in `send(to="Ann")`, or names by a name that is no plain word, as in `send_mail`."""
    return frozenset(name for name in tools if re.search(_pattern(name), plan))


def _pattern(name: str) -> str:
    is_word = name.isalpha() and name[1:] == name[1:].lower()  # in capitals at the beginning of a sentence, too
    end = r"\(" if is_word else r"(?![\w-])"
    return rf"(?<![\w-]){re.escape(name)}{end}"
