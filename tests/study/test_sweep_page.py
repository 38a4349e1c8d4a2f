"""The page about sweeps: its study can be run, and its list of configurations is what the parser takes."""

import re
from pathlib import Path

from nearfar.orchestrator.compose import NearConfig, parse_far
from nearfar.orchestrator.lab.study import EVENTS, StudyFile, make_study, parse_configurations, parse_study_file
from nearfar.orchestrator.task.policy import Policy

PAGE = (Path(__file__).parents[2] / "docs" / "sweep.md").read_text(encoding="utf-8")


def test_the_study_on_the_page_can_be_run() -> None:
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    study = make_study(parse_study_file(text, "the page"), near=NearConfig(), far=parse_far("far"), policy=Policy())
    labels = {each.label for each in study.configurations}
    assert {"pevr/inf", "eva/8", "careful"} <= labels
    assert {each.policy.maximum_turns for each in study.configurations} == {40}


def test_every_key_of_a_study_is_on_the_page() -> None:
    for key in StudyFile.model_fields:
        assert re.search(rf"^{key} =|^\[+{key}\]|`{key}`", PAGE, re.MULTILINE), key


def test_every_spec_on_the_page_is_taken() -> None:
    table = PAGE.partition("| spec | what |")[2].partition("\n\n")[0]
    specs = [
        spec.replace("\\|", "|")
        for row in table.splitlines()[2:]
        for spec in re.findall(r"`([^`]+)`", row.replace("\\|", "\0").split("|")[1].replace("\0", "|"))
    ]
    assert len(specs) >= 16
    assert len(parse_configurations(specs, Policy())) >= len(specs)
    assert f"alone: {', '.join(f'`{trigger}`' for trigger in EVENTS)}" in table
