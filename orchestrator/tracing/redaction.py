"""Taking credentials out of what is kept. It is JSON, so no pattern may reach over a quotation mark or a backslash."""

import re
from typing import Final

REDACTED: Final = "[redacted]"
_SECRETS: Final = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----[^\"]*?-----END [A-Z ]*PRIVATE KEY-----"
    r"|\b(?:sk|pk|rk|key)-[A-Za-z0-9][\w*.-]{15,}"  # OpenAI, Anthropic, Stripe and those that follow them
    r"|\bAIza[\w-]{20,}|\bAKIA[0-9A-Z]{16}\b|\bgh[pousr]_\w{20,}|\bxox[abeoprs]-[\w-]{10,}"
    r"|\beyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]+"  # JSON Web Tokens
    r"|(?i:(?<=\bbearer )[\w.~+/=-]{8,})"
    r"|(?i:(?<=[?&]key=)[^&\s\"\\]+)"
)


def redacted(text: str) -> str:
    """The text without anything that looks like a key, a token or a private key."""
    return _SECRETS.sub(REDACTED, text)
