"""Lists of words, written as a text."""


def listed(text: str) -> frozenset[str]:
    """Return the words of a text."""
    return frozenset(text.split())
