"""The configuration page lists every key with its default, and no other."""

import json
import re
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from pages import ROOT
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from nearfar.cloud.admission import GatewayLimits
from nearfar.cloud.config import ProviderConfig
from nearfar.cloud.near_server import NearServerConfig
from nearfar.orchestrator.compose.agents import GatewayConfig, LocalFarConfig, NearConfig
from nearfar.orchestrator.compose.config import Config
from nearfar.orchestrator.compose.hub import HubConfig, WorkerConfig
from nearfar.orchestrator.task.policy import (
    PRESETS,
    AutoConfig,
    CompressionConfig,
    GuardConfig,
    MinionsConfig,
    Policy,
    Preset,
    PrivacyConfig,
    SubtasksConfig,
    SupervisionConfig,
)
from nearfar.orchestrator.task.roles import Role
from nearfar.orchestrator.task.routing_policy import (
    AmountsConfig,
    BreakerConfig,
    EvidenceConfig,
    FallbackConfig,
    HedgeConfig,
    LimitsConfig,
    ObjectiveConfig,
    RouterConfig,
    StickinessConfig,
)
from nearfar.orchestrator.task.rules import Rule, When
from nearfar.orchestrator.task.stores import (
    CacheConfig,
    CategoryConfig,
    ConsolidationConfig,
    MemoryConfig,
    PeerConfig,
    RecallConfig,
    RunsConfig,
)
from nearfar.protocols import Prices

PAGE = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
SECTIONS: dict[str, type[BaseModel]] = {
    "near": NearConfig,
    "server": NearServerConfig,
    "provider": ProviderConfig,
    "prices": Prices,
    "llama": LocalFarConfig,
    "gateway": GatewayConfig,
    "admission": GatewayLimits,
    "hub": HubConfig,
    "worker": WorkerConfig,
    "memory": MemoryConfig,
    "recall": RecallConfig,
    "sleep": ConsolidationConfig,
    "peer": PeerConfig,
    "cache": CacheConfig,
    "role": Role,
    "runs": RunsConfig,
    "category": CategoryConfig,
    "policy": Policy,
    "rule": Rule,
    "when": When,
    "objective": ObjectiveConfig,
    "limits": LimitsConfig,
    "amounts": AmountsConfig,
    "fallback": FallbackConfig,
    "breakers": BreakerConfig,
    "privacy": PrivacyConfig,
    "guard": GuardConfig,
    "hedge": HedgeConfig,
    "stickiness": StickinessConfig,
    "evidence": EvidenceConfig,
    "router": RouterConfig,
    "supervision": SupervisionConfig,
    "minions": MinionsConfig,
    "subtasks": SubtasksConfig,
    "compression": CompressionConfig,
    "auto": AutoConfig,
}
ROW = re.compile(r"^\| `(\w+)` \| ([^|]+) \|", re.MULTILINE)


@pytest.mark.parametrize("section", SECTIONS)
def test_table_matches_the_model(section: str) -> None:
    table = re.search(rf"<!-- keys: {section} -->\n(.*?)\n(?:#|<!-- keys|\Z)", PAGE, re.DOTALL)
    assert table is not None
    documented = {key: default.strip() for key, default in ROW.findall(table[1])}
    assert documented == {name: shown_default(field) for name, field in SECTIONS[section].model_fields.items()}


def test_every_section_of_the_file_has_a_heading_and_every_key_above_them_is_named() -> None:
    for name, field in Config.model_fields.items():
        assert f"## `[{name}]`" in PAGE or (field.annotation in (str, tuple[str, ...]) and f"`{name} = " in PAGE), name


def shown_default(field: FieldInfo) -> str:
    """A default as TOML writes it."""
    if field.is_required():
        return "required"
    if field.default is None or field.default_factory is not None:
        return "not set"
    if isinstance(field.default, BaseModel):
        return "section"
    value = field.default.value if isinstance(field.default, Enum) else field.default
    value = str(value) if isinstance(value, Path) else value
    return f"`{json.dumps(value)}`"


def test_table_of_presets_matches_the_code() -> None:
    table = re.search(r"<!-- presets -->\n\n((?:\|.*\n)+)", PAGE)
    assert table is not None
    header, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table[1].splitlines()]
    assert header == ["key", *(f"`{preset}`" for preset in Preset)]
    for place, preset in enumerate(Preset, start=1):
        shown = {row[0]: row[place] for row in rows if row[place]}
        assert shown == {f"`{key}`": f"`{json.dumps(value)}`" for key, value in flat(PRESETS[preset])}


def flat(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, object]]:
    """Yield the keys as the file writes them, with their values."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value
