"""`nearfar.toml`: what is wrong with it is named with its line."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearfar.orchestrator.compose import GatewayConfig, LocalFarConfig, NearConfig
from nearfar.orchestrator.compose.config import load_config, parse_config
from nearfar.orchestrator.task.modes import Mode, Strategy
from nearfar.protocols import ConfigError

GOOD = """
[near]
model = "model.gguf"
context_tokens = 2048

[far]
provider = "openai"
model = "gpt-4o"

[policy]
mode = "prefer_on_device"
strategy = "route"
minimum_confidence = 0.5
"""


def test_a_good_file_is_read() -> None:
    config = parse_config(GOOD, "nearfar.toml")
    assert isinstance(config.near, NearConfig)
    assert config.near.context_tokens == 2048
    assert config.far is not None
    assert config.far.provider == "openai"
    assert config.policy.mode is Mode.PREFER_ON_DEVICE
    assert config.policy.strategy is Strategy.ROUTE


def test_an_empty_file_means_the_defaults() -> None:
    config = parse_config("", "nearfar.toml")
    assert config.near is None
    assert config.policy.strategy is Strategy.CASCADE


@pytest.mark.parametrize(
    ("before", "after", "line", "words"),
    [
        ('mode = "prefer_on_device"', 'mod = "prefer_on_device"', 11, ["policy.mod", "unknown key", "'mode'"]),
        ("context_tokens = 2048", 'context_tokens = "many"', 4, ["near.context_tokens", "integer", "many"]),
        ("context_tokens = 2048", "context_tokens = -1", 4, ["near.context_tokens", "greater than 0"]),
        ('mode = "prefer_on_device"', 'mode = "cheap"', 11, ["policy.mode", "only_on_device"]),
        ("minimum_confidence = 0.5", "minimum_confidence = 7", 13, ["policy.minimum_confidence", "less than or equal to 1"]),
        ('provider = "openai"', 'provider = "openia"', 7, ["far.provider", "'openia'", "openai"]),
        ('model = "gpt-4o"', 'modle = "gpt-4o"', 8, ["far.modle", "'model'"]),
        ("[policy]", "[polcy]", 10, ["polcy", "unknown key", "'policy'"]),
        (
            'model = "gpt-4o"',
            'model = "gpt-4o"\napi_key = "sk-123"',
            9,
            ["far.api_key", "a secret must not stand", 'key_variable = "OPENAI_API_KEY"'],
        ),
    ],
)
def test_a_mistake_is_named_with_its_line(before: str, after: str, line: int, words: list[str]) -> None:
    assert before in GOOD
    with pytest.raises(ConfigError) as caught:
        parse_config(GOOD.replace(before, after), "nearfar.toml")
    assert f"nearfar.toml, line {line}:" in caught.value.message
    for word in words:
        assert word in caught.value.message


def test_several_mistakes_are_all_named() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config('[policy]\nmode = "x"\nstrategy = "y"\n', "nearfar.toml")
    assert "line 2" in caught.value.message
    assert "line 3" in caught.value.message


def test_what_is_not_toml_is_named_with_its_line() -> None:
    with pytest.raises(ConfigError, match="line 2"):
        parse_config("[near]\nmodel = \n", "nearfar.toml")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no .*nearfar\.toml"):
        load_config(tmp_path / "nearfar.toml")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a = " + "[" * 50_000 + "]" * 50_000, "too deeply"),
        ("a = " + "{a = " * 500 + "1" + "}" * 500, "too deeply"),
        ("[policy.limits]\n" + ".".join(["a"] * 2000) + " = 1", "too deeply"),
        ("[policy]\nrules = " + "[" * 200 + "]" * 200, "too deeply"),
        ("[policy]\nmaximum_turns = " + "9" * 5000, "too long"),
        ("[policy]\nmaximum_turns = 0x" + "f" * 10_000, "line 2: policy.maximum_turns: a whole number"),
        ("[cache]\nentries = 9223372036854775808", "line 2: cache.entries: a whole number"),
        ('[policy.router]\nlog = "a\\u0000b"', "line 2: policy.router.log: a text has no zero"),
        ('[memory]\nuser = "a\\u0000b"', "zero character"),
    ],
)
def test_what_no_key_can_be_is_refused_in_words(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_config(text, "nearfar.toml")


def test_a_path_below_the_folder_of_a_user_who_is_not_there_is_refused(tmp_path: Path) -> None:
    (tmp_path / "nearfar.toml").write_text('[memory]\npath = "~nobody-of-this-name/memory.db"\n', encoding="utf-8")
    with pytest.raises(ConfigError, match="~"):
        load_config(tmp_path / "nearfar.toml")


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "nearfar.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read") as caught:
        load_config(path)
    assert caught.value.hint == "save it as UTF-8"


def test_a_file_without_an_end_is_refused(tmp_path: Path) -> None:
    (tmp_path / "nearfar.toml").symlink_to("/dev/zero")
    with pytest.raises(ConfigError, match=r"has more than 1,000,000 characters"):
        load_config(tmp_path / "nearfar.toml")


_VALUES = st.recursive(
    st.booleans() | st.integers(-5, 5) | st.text(alphabet="abc", max_size=3).map(lambda text: f'"{text}"'),
    lambda inner: st.lists(inner, max_size=2),
    max_leaves=3,
)


@given(st.sampled_from(["near", "far", "policy", "other"]), st.sampled_from(["model", "mode", "threads", "provider", "zzz"]), _VALUES)
def test_whatever_a_file_sets_it_is_read_or_refused_with_a_line(section: str, key: str, value: object) -> None:
    text = f"[{section}]\n{key} = {str(value).replace(chr(39), '').lower()}\n"
    message = "line 1"
    try:
        parse_config(text, "nearfar.toml")
    except ConfigError as error:
        message = error.message
    assert "line " in message


@pytest.mark.parametrize(
    "text",
    [
        '[far]\nprovider = "openai"\nkey = "sk-secret"\n',
        '[far]\nprovider = "openai"\nmodel = "m"\nkey_variable = "sk-secret"\n',
        '[far]\nkey = "sk-secret"\n',
        'far = "sk-secret"\n',
    ],
)
def test_a_key_in_the_wrong_place_is_not_repeated(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(text, "nearfar.toml")
    assert "sk-secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('near = "x.gguf"\n', "line 1: near must be a section: [near]"),
        ('[far]\nmodel = "m"\n', "far.provider is missing; choose one of openai"),
        ('[far]\nprovider = "openai"\n', "far.model is missing"),
        ('[far]\nprovider = "gateway"\naddres = "h:1"\n', "did you mean 'address'?"),
        ('[near]\nmodel = "near"\nparallel = "4"\n', "line 3: near.parallel: Input should be a valid integer, not '4'"),
        ('[memory]\nremember = "yes"\n', "line 2: memory.remember: Input should be a valid boolean"),
        ('[[policy.rules]]\nname = "r"\nwhen = { task_class = "bills" }\n', "task_class: Input should be a valid array, not 'bills'"),
    ],
)
def test_a_mistake_says_what_to_write(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(text, "nearfar.toml")
    assert words in caught.value.message


def test_only_keys_of_the_chosen_provider_are_suggested() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config('[far]\nprovider = "gateway"\naddress = "h:1"\nzzz = 1\n', "nearfar.toml")
    assert "token_variable" in caught.value.message
    assert "logprobs" not in caught.value.message


def test_relative_paths_start_at_the_files_own_folder(tmp_path: Path) -> None:
    path = tmp_path / "nearfar.toml"
    path.write_text('[near]\nmodel = "models/small.gguf"\n[far]\nprovider = "llama"\nmodel = "/large.gguf"\n', encoding="utf-8")
    config = load_config(path)
    assert config.near is not None
    assert config.near.model == str(tmp_path / "models" / "small.gguf")
    assert isinstance(config.far, LocalFarConfig)
    assert config.far.model == "/large.gguf"


def test_a_certificate_is_found_beside_the_file_and_shipped_models_keep_their_names(tmp_path: Path) -> None:
    path = tmp_path / "nearfar.toml"
    path.write_text('[near]\nmodel = "near"\n[far]\nprovider = "gateway"\naddress = "h:1"\ncertificate = "ca.pem"\n', encoding="utf-8")
    config = load_config(path)
    assert config.near is not None
    assert config.near.model == "near"
    assert isinstance(config.far, GatewayConfig)
    assert config.far.certificate == tmp_path / "ca.pem"


def test_memory_section_is_read_and_its_paths_start_at_the_file(tmp_path: Path) -> None:
    text = '[memory]\npath = "own.db"\nuser = "ana"\ntier = "user"\n[memory.recall]\nnamespaces = ["notes/ana"]\n'
    text += '[memory.peers.hub]\naddress = "hub.example:7445"\ncertificate = "hub.pem"\n'
    file = tmp_path / "nearfar.toml"
    file.write_text(text, encoding="utf-8")
    memory = load_config(file).memory
    assert memory is not None
    assert memory.recall is not None
    assert (memory.path, memory.user, memory.tier, memory.remember) == (tmp_path / "own.db", "ana", "user", False)
    assert (memory.recall.prefixes, memory.recall.may_leave) == ((("notes", "ana"),), "shared")
    assert memory.peers["hub"].certificate == tmp_path / "hub.pem"


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('tier = "everybody"', "line 2: memory.tier"),
        ("ttl = 0", "line 2: memory.ttl"),
        ("remembers = true", "did you mean 'remember'?"),
        ('recall = {may_leave = "device"}', "memory.recall.may_leave"),
        ('recall = {namespaces = ["notes//ana"]}', "a label in it is empty"),
        ('path = "own.db"\npostgres_variable = "DATABASE"', "give one or the other"),
        ('peers = {hub = {address = "h:1", certificate = "a.pem", fingerprint = "sha256:%s"}}' % ("0" * 64), "give one of them"),
    ],
)
def test_mistake_in_the_memory_section_is_explained(line: str, problem: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_config(f"[memory]\n{line}\n", "nearfar.toml")
    assert problem in raised.value.message


def test_a_database_with_its_password_in_place_of_the_variable_is_not_quoted() -> None:
    with pytest.raises(ConfigError) as raised:
        parse_config('[memory]\npostgres_variable = "postgres://ana:hunter2@db/memory"\n', "nearfar.toml")
    assert "memory.postgres_variable" in raised.value.message
    assert "hunter2" not in str(raised.value)


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "nearfar.toml"
    path.write_bytes(b'\xef\xbb\xbf[near]\r\nmodel = "near"\r\n')
    near = load_config(path).near
    assert near is not None
    assert near.model == "near"
