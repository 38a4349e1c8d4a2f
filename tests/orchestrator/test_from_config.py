"""`Hybrid.from_config`: an argument replaces what the file says, and the policy in the file is checked against what came of it."""

from pathlib import Path

import pytest

from nearfar import Hybrid
from nearfar.protocols import ConfigError, ScriptedAgent

RULE = '\n[[policy.rules]]\nname = "r"\nagent = "{}"\n'


def written(folder: Path, text: str) -> Path:
    path = folder / "nearfar.toml"
    path.write_text(text)
    return path


def agent(name: str) -> ScriptedAgent:
    return ScriptedAgent(["hi"], name=name)


def test_a_rule_may_name_an_agent_that_only_the_arguments_give(tmp_path: Path) -> None:
    near = Hybrid.from_config(written(tmp_path, RULE.format("near")), near=agent("near"))
    other = Hybrid.from_config(written(tmp_path, '[near]\nmodel = "near"\n' + RULE.format("second")), agents={"second": agent("second")})
    assert [handle.name for handle in near.pool] == ["near"]
    assert [handle.name for handle in other.pool] == ["near", "second"]


def test_a_rule_must_not_name_an_agent_that_the_arguments_remove(tmp_path: Path) -> None:
    file = written(tmp_path, '[near]\nmodel = "near"\n[other_near.second]\nmodel = "near"\n' + RULE.format("second"))
    with pytest.raises(ConfigError, match="there is no agent 'second'"):
        Hybrid.from_config(file, agents=None)
