"""The configuration page lists every key with its default, and no other."""

import json
import re
from enum import Enum
from pathlib import Path

import pytest
from pages import ROOT
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from nearfar.cloud.admission.settings import GatewayLimits
from nearfar.cloud.config import ProviderConfig
from nearfar.orchestrator.cache.settings import CacheSettings, CategorySettings
from nearfar.orchestrator.compose import GatewayConfig, LocalFarConfig, NearConfig
from nearfar.orchestrator.compression.policy import CompressionPolicy
from nearfar.orchestrator.config import Config
from nearfar.orchestrator.guarding.settings import GuardPolicy
from nearfar.orchestrator.hub import HubConfig, WorkerConfig
from nearfar.orchestrator.memory.settings import MemoryConfig, PeerConfig, RecallConfig
from nearfar.orchestrator.memory.sleep.policy import SleepPolicy
from nearfar.orchestrator.privacy.settings import PrivacyPolicy
from nearfar.orchestrator.resilience.settings import BreakerPolicy, HedgePolicy
from nearfar.orchestrator.routing.rules import Rule, When
from nearfar.orchestrator.routing.settings import Amounts, EvidencePolicy, Fallback, Limits, Objective, RouterPolicy, Stickiness
from nearfar.orchestrator.runs.settings import RunsConfig
from nearfar.orchestrator.selection.settings import AutoPolicy
from nearfar.orchestrator.strategies.minions_policy import MinionsPolicy
from nearfar.orchestrator.strategies.subtasks_policy import SubtasksPolicy
from nearfar.orchestrator.strategies.supervision import Supervision
from nearfar.orchestrator.task import Policy
from nearfar.protocols import Prices

PAGE = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
SECTIONS: dict[str, type[BaseModel]] = {
    "near": NearConfig,
    "provider": ProviderConfig,
    "prices": Prices,
    "llama": LocalFarConfig,
    "gateway": GatewayConfig,
    "admission": GatewayLimits,
    "hub": HubConfig,
    "worker": WorkerConfig,
    "memory": MemoryConfig,
    "recall": RecallConfig,
    "sleep": SleepPolicy,
    "peer": PeerConfig,
    "cache": CacheSettings,
    "runs": RunsConfig,
    "category": CategorySettings,
    "policy": Policy,
    "rule": Rule,
    "when": When,
    "objective": Objective,
    "limits": Limits,
    "amounts": Amounts,
    "fallback": Fallback,
    "breakers": BreakerPolicy,
    "privacy": PrivacyPolicy,
    "guard": GuardPolicy,
    "hedge": HedgePolicy,
    "stickiness": Stickiness,
    "evidence": EvidencePolicy,
    "router": RouterPolicy,
    "supervision": Supervision,
    "minions": MinionsPolicy,
    "subtasks": SubtasksPolicy,
    "compression": CompressionPolicy,
    "auto": AutoPolicy,
}
ROW = re.compile(r"^\| `(\w+)` \| ([^|]+) \|", re.MULTILINE)


@pytest.mark.parametrize("section", SECTIONS)
def test_table_matches_the_model(section: str) -> None:
    table = re.search(rf"<!-- keys: {section} -->\n(.*?)\n(?:#|<!-- keys|\Z)", PAGE, re.DOTALL)
    assert table is not None
    documented = {key: default.strip() for key, default in ROW.findall(table[1])}
    assert documented == {name: shown_default(field) for name, field in SECTIONS[section].model_fields.items()}


def test_every_section_of_the_file_has_a_heading() -> None:
    for name in Config.model_fields:
        assert f"## `[{name}]`" in PAGE


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
