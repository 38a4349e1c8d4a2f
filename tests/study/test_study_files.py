"""Studies as they are written in TOML, and what is refused before the first run."""

from pathlib import Path

import pytest

from nearfar.orchestrator.compose import NearConfig, parse_far
from nearfar.orchestrator.lab.study import Study, StudyFile, claim_folder, make_study, parse_study_file, read_study_file, with_options
from nearfar.orchestrator.task.policy import Policy
from nearfar.protocols import ConfigError

TEXT = """
worlds = ["search"]
tasks = 5
seeds = [7, 9, 7]
runs = ["device", "pevr/2|4"]

[policy]
maximum_turns = 40

[[run]]
label = "careful"
strategy = "eva"
maximum_turns = 20
supervision = { interval = "inf", triggers = ["tool_error"] }
"""


def study(file: StudyFile, *, near: NearConfig | None = NearConfig(), far: str | None = "far") -> Study:  # noqa: B008 - immutable
    return make_study(file, near=near, far=parse_far(far) if far else None, policy=Policy())


def test_a_file_says_what_is_run() -> None:
    made = study(parse_study_file(TEXT, "study.toml"))
    assert (made.worlds, made.tasks, made.seeds) == (("search",), 5, (7, 9))
    knobs = {each.label: each.knobs for each in made.configurations}
    assert list(knobs) == ["device", "pevr/2", "pevr/4", "careful"]
    assert knobs["pevr/2"] == {"maximum_turns": 40, "supervision": {"interval": 2}}
    assert knobs["careful"] == {"maximum_turns": 20, "supervision": {"interval": None, "triggers": ["tool_error"]}}


def test_options_stand_in_place_of_the_files_keys() -> None:
    file = with_options(parse_study_file(TEXT, "study.toml"), {"tasks": 3, "seeds": 2})
    assert (file.tasks, file.seeds, file.worlds) == (3, (1, 2), ("search",))


def test_a_study_survives_the_way_to_a_worker() -> None:
    made = study(parse_study_file(TEXT, "study.toml"))
    assert Study.model_validate_json(made.model_dump_json()) == made


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("tasks = ", "not valid TOML"),
        ("task = 5", "unknown key 'task'; the keys are worlds, tasks"),
        ("tasks = 0", "tasks: Input should be greater than 0"),
        ("seeds = 0", "seeds"),
        ("worlds = []", "worlds"),
        ("ceiling = -1", "ceiling"),
        ("runs = [4]", r"runs\.0"),
    ],
)
def test_a_wrong_file_says_what_is_wrong(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        parse_study_file(text, "study.toml")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('[[run]]\nstrategy = "pevr"', "number 1 needs a label"),
        ('[[run]]\nlabel = "a"\nstrategy = "pvr"', "configuration 'a': strategy"),
        ('[[run]]\nlabel = "a"\nintervals = 4', "'a': intervals: is not known"),
        ('[[run]]\nlabel = "a"\noracle = "yes"', "number 1 needs a label"),
        ("[policy]\nmaximum_turn = 4", "maximum_turn: is not known"),
        ('runs = ["pevr/x"]', "the pace"),
    ],
)
def test_configurations_that_cannot_be_are_refused(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        study(parse_study_file(text, "study.toml"))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no .*study\.toml"):
        read_study_file(tmp_path / "study.toml")


def test_tasks_of_the_users_own_do_not_leave_the_device_unasked() -> None:
    own = StudyFile(worlds=("mine:World",), runs=("device pevr/4",))
    with pytest.raises(ConfigError, match="private") as caught:
        study(own)
    assert "--public" in caught.value.hint
    assert study(with_options(own, {"public": True})).needs_far
    assert not study(StudyFile(worlds=("mine:World",), runs=("device pevr/4+oracle",))).needs_far


def test_a_side_that_is_needed_must_be_configured() -> None:
    with pytest.raises(ConfigError, match="needs a far agent"):
        study(StudyFile(runs=("pevr/4",)), far=None)
    with pytest.raises(ConfigError, match="needs a near agent"):
        study(StudyFile(runs=("device",)), near=None)
    assert study(StudyFile(runs=("cloud",)), near=None).needs_far
    assert not study(StudyFile(runs=("device",)), far=None).needs_far


def test_a_folder_keeps_to_the_models_it_was_begun_with(tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    model.write_bytes(b"one model")
    near = NearConfig(model=str(model))
    file = StudyFile(runs=("device",))
    claim_folder(tmp_path / "out", study(file, near=near))
    claim_folder(tmp_path / "out", study(with_options(file, {"tasks": 7, "runs": ["device pevr/4"]}), near=near))
    model.write_bytes(b"two model")
    with pytest.raises(ConfigError, match="another near model"):
        claim_folder(tmp_path / "out", study(file, near=near))


def test_a_folder_does_not_mix_the_users_own_agents_with_models(tmp_path: Path) -> None:
    file = StudyFile(runs=("device",))
    claim_folder(tmp_path / "own", study(with_options(file, {"agents": "mine:agents"})))
    with pytest.raises(ConfigError, match="holds runs of mine:agents"):
        claim_folder(tmp_path / "own", study(file))
    assert {path.name for path in (tmp_path / "own").iterdir()} == {"study.json"}


def test_a_damaged_note_of_the_models_is_named(tmp_path: Path) -> None:
    (tmp_path / "study.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"study\.json is damaged"):
        claim_folder(tmp_path, study(StudyFile(runs=("device",))))
