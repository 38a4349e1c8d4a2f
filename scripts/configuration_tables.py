"""Write the tables that documentation takes from the code.

Those of keys in docs/configuration.md come from the JSON Schema of nearfar.toml, whose descriptions are the docstrings of fields; that of
limits in docs/security.md comes from the module of limits.
"""

import ast
import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from nearfar.orchestrator.compose.policy_file import config_schema
from nearfar.protocols import limits

_DOCS: Final = Path(__file__).parents[1] / "docs"
PAGE: Final = _DOCS / "configuration.md"
SECURITY: Final = _DOCS / "security.md"
_MEBIBYTE, _KIBIBYTE = 2**20, 2**10
SECTIONS: Final = {
    "near": "NearConfig",
    "server": "NearServerConfig",
    "provider": "ProviderConfig",
    "prices": "Prices",
    "llama": "LocalFarConfig",
    "gateway": "GatewayConfig",
    "a2a": "A2aAgentConfig",
    "role": "Role",
    "mcp": "McpServerConfig",
    "mcp_tool": "McpToolConfig",
    "serve": "ServeConfig",
    "caller": "CallerConfig",
    "hub": "HubConfig",
    "worker": "WorkerConfig",
    "memory": "MemoryConfig",
    "recall": "RecallConfig",
    "sleep": "ConsolidationConfig",
    "peer": "PeerConfig",
    "admission": "GatewayLimits",
    "cache": "CacheConfig",
    "category": "CategoryConfig",
    "runs": "RunsConfig",
    "policy": "Policy",
    "rule": "Rule",
    "when": "When",
    "objective": "ObjectiveConfig",
    "limits": "LimitsConfig",
    "amounts": "AmountsConfig",
    "privacy": "PrivacyConfig",
    "guard": "GuardConfig",
    "fallback": "FallbackConfig",
    "breakers": "BreakerConfig",
    "hedge": "HedgeConfig",
    "stickiness": "StickinessConfig",
    "evidence": "EvidenceConfig",
    "router": "RouterConfig",
    "supervision": "SupervisionConfig",
    "minions": "MinionsConfig",
    "speculate": "SpeculateConfig",
    "subtasks": "SubtasksConfig",
    "compression": "CompressionConfig",
    "auto": "AutoConfig",
}
"""By the name of a table on the page: the class whose fields it lists."""
TABLE: Final = re.compile(r"(<!-- keys: (\w+) -->\n\n)((?:\|.*\n)*)")
"""A table on the page: its mark, its name, and its lines."""
_BOUNDS: Final = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
_KINDS: Final = {"string": "text", "integer": "number"}
_WORDS: Final = (
    (r"(^|[.] )None(?=[:,])", r"\1Not set"),
    (r"\bNone(?=[:,])", "not set"),
    (r"(?i)\b(true|false)(?=:| if)", lambda found: f"`{found[1].lower()}`"),
)
"""Python's words for values in descriptions, and TOML's."""

JsonObject = dict[str, Any]


def written(page: str) -> str:
    """Return the page with its tables as the code has them."""
    known = config_schema()["$defs"]
    return TABLE.sub(lambda found: found[1] + "".join(f"{line}\n" for line in _table(known[SECTIONS[found[2]]], known)), page)


def _table(section: JsonObject, known: JsonObject) -> Iterator[str]:
    yield "| key | default | values | meaning |"
    yield "|---|---|---|---|"
    for name, key in section["properties"].items():
        default = "required" if name in section.get("required", ()) else _default(key)
        yield f"| `{name}` | {default} | {_values(key, known)} | {_meaning(key)} |"


def _default(key: JsonObject) -> str:
    value = key.get("default")
    if value is None:
        return "not set"
    return "section" if _is_section(value) else f"`{json.dumps(value)}`"


def _is_section(default: object) -> bool:
    return isinstance(default, dict) and bool(default)


def _values(key: JsonObject, known: JsonObject) -> str:
    """Return the values that a key takes, a few words each."""
    return ", ".join(dict.fromkeys(kind for option in _options(key, known) for kind in _kinds(option, known)))


def _options(key: JsonObject, known: JsonObject) -> Iterator[JsonObject]:
    for option in key.get("anyOf") or key.get("oneOf") or [key]:
        if option.get("type") != "null":
            yield known[option["$ref"].rpartition("/")[2]] if "$ref" in option else option


def _kinds(option: JsonObject, known: JsonObject) -> Iterator[str]:
    """Yield what one kind of value is called: its names, or its type with bounds."""
    if "anyOf" in option or "oneOf" in option:
        for each in _options(option, known):
            yield from _kinds(each, known)
    elif names := option.get("enum") or ([option["const"]] if "const" in option else []):
        yield from (f"`{json.dumps(name)}`" for name in names)
    elif option.get("type") == "boolean":
        yield from ("`true`", "`false`")
    elif option.get("type") == "array":
        yield f"list of {_values(option['items'], known)}".replace("list of section", "sections")
    elif option.get("type") == "object":
        yield _section_kind(option)
    elif option.get("format") in ("path", "date"):
        yield option["format"]
    else:
        yield _KINDS.get(kind := str(option.get("type", "any")), kind) + _bounds(option)


def _section_kind(option: JsonObject) -> str:
    """Return how a section is written: where no table of the page lists its keys, with them."""
    if option.get("title") in SECTIONS.values() or "properties" not in option:
        return "section"
    return f"`{{ {', '.join(option['properties'])} }}`"


def _bounds(option: JsonObject) -> str:
    least, most = option.get("minimum"), option.get("maximum")
    if least is not None and most is not None:
        return f" {least:,g} to {most:,g}"
    return "".join(f" {sign} {option[name]:,g}" for name, sign in _BOUNDS.items() if name in option)


def _meaning(key: JsonObject) -> str:
    text = str(key.get("description", ""))
    for word, replacement in _WORDS:
        text = re.sub(word, replacement, text)
    return text.replace("|", "\\|")


def with_limits(page: str) -> str:
    """Return the page on security with its table of limits as the code has it."""
    rows = ["| limit | value | of what, and why |", "|---|---|---|", *limit_rows()]
    return TABLE.sub(lambda found: found[1] + "".join(f"{row}\n" for row in rows), page)


def limit_rows() -> list[str]:
    """Return the rows of the table of limits, in the order of the code."""
    body = ast.parse(Path(inspect.getfile(limits)).read_text(encoding="utf-8")).body
    found = []
    for node, following in zip(body, [*body[1:], None], strict=True):
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name) or node.target.id.startswith("_"):
            continue
        is_told = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
        reason = " ".join(str(following.value.value).split()) if is_told else ""  # type: ignore[union-attr]  # as has just been seen
        assert reason, f"{node.target.id} has no reason"
        found.append(f"| `{node.target.id}` | {_amount(node.target.id, getattr(limits, node.target.id))} | {reason} |")
    return found


def _amount(name: str, value: float) -> str:
    if name.endswith("_SECONDS"):
        return f"{value:g} s"
    if isinstance(value, int) and value >= _KIBIBYTE and any(unit in name for unit in ("BYTES", "LENGTH", "CHARACTERS")):
        for size, unit in ((_MEBIBYTE, "Mi"), (_KIBIBYTE, "Ki")):
            if not value % size:
                return f"{value // size} {unit}{'B' if 'BYTES' in name else ''}"
    return f"{value:,}"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    SECURITY.write_text(with_limits(SECURITY.read_text(encoding="utf-8")), encoding="utf-8")
