"""Secrets that stand in a configuration: refused with the variable to use, and never repeated."""

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearfar.orchestrator.compose import far_handle, parse_far
from nearfar.orchestrator.compose.config import Config, parse_config
from nearfar.protocols import ConfigError, ScriptedAgent
from nearfar.protocols.server import serve

SECRET = "canary-4711-canary"
SECTIONS = {
    "near": "",
    "far": 'provider = "openai"\nmodel = "m"\n',
    "other_far.second": 'provider = "gateway"\naddress = "host:1"\n',
    "hub": "",
    "hub.workers.phone": "",
    "gateway": "",
    "memory": "",
    "memory.peers.hub": 'address = "host:1"\n',
    "runs": "",
    "cache": "",
    "policy": "",
    "policy.privacy": "",
}
WORDS = ("key", "token", "secret", "password", "passwd", "passphrase", "credential", "credentials", "bearer", "authorization", "api_key")
KNOWN = {("hub", "key"), ("other_far.second", "client_key"), ("memory.peers.hub", "client_key")}
"""What have such a name and are no secrets, but the paths of files."""


def problem(section: str, key: str, value: str = SECRET) -> str:
    """What is wrong with a file that has this key."""
    with pytest.raises(ConfigError) as caught:
        parse_config(f"[{section}]\n{SECTIONS[section]}{key} = {value!r}\n", "nearfar.toml")
    return str(caught.value)


def name(parts: list[str], *, style: int) -> str:
    """A key of these words, as people write them."""
    return ("_".join(parts), "-".join(parts), parts[0] + "".join(part.title() for part in parts[1:]), "_".join(parts).upper())[style]


NAMES = st.builds(
    lambda before, word, after, style: name([*before, word, *after], style=style),
    st.lists(st.sampled_from(["my", "openai", "client", "db", "user", "private"]), max_size=2),
    st.sampled_from(WORDS),
    st.lists(st.sampled_from(["value", "text", "for", "cloud"]), max_size=1),
    st.integers(0, 3),
)


@given(section=st.sampled_from(sorted(SECTIONS)), key=NAMES)
def test_what_is_called_a_secret_is_refused_and_not_repeated(section: str, key: str) -> None:
    if (section, key) in KNOWN:
        return
    said = problem(section, key)
    assert "a secret must not stand in the file" in said
    assert f"{section}.{key}" in said
    assert SECRET not in said


@given(section=st.sampled_from(sorted(SECTIONS)), key=st.from_regex(r"zz[A-Za-z0-9_-]{0,20}", fullmatch=True))
def test_the_value_of_an_unknown_key_is_not_repeated(section: str, key: str) -> None:
    assert SECRET not in problem(section, key)


@pytest.mark.parametrize(
    ("section", "key", "variable"),
    [
        ("far", "api_key", 'key_variable = "OPENAI_API_KEY"'),
        ("other_far.second", "token", 'token_variable = "NEARFAR_TOKEN"'),
        ("memory", "key", 'key_variable = "NEARFAR_MEMORY_KEY"'),
        ("memory.peers.hub", "token", 'token_variable = "NEARFAR_TOKEN"'),
        ("runs", "password", 'postgres_variable = "NEARFAR_RUNS_POSTGRES"'),
        ("hub", "token", "for the file that `tokens` names"),
        ("near", "password", 'key_variable = "NEARFAR_NEAR_KEY"'),
        ("policy", "password", "nothing here needs one"),
    ],
)
def test_the_error_says_which_variable_to_use(section: str, key: str, variable: str) -> None:
    assert variable in problem(section, key)


@pytest.mark.parametrize(
    ("section", "key", "value", "variable"),
    [
        ("memory", "path", "postgres://ana:hunter2@host/db", 'postgres_variable = "NEARFAR_MEMORY_POSTGRES"'),
        ("memory", "postgres_variable", "postgres://ana:hunter2@host/db", 'postgres_variable = "NEARFAR_MEMORY_POSTGRES"'),
        ("runs", "folder", "host=db user=ana password=hunter2", 'postgres_variable = "NEARFAR_RUNS_POSTGRES"'),
        ("far", "base_url", "https://ana:hunter2@host/v1", 'key_variable = "OPENAI_API_KEY"'),
        ("far", "key_variable", "sk-hunter2aaaabbbbccccddddeeee", 'key_variable = "OPENAI_API_KEY"'),
        ("hub", "key", "-----BEGIN PRIVATE KEY-----\\nhunter2\\n-----END PRIVATE KEY-----", "for the file that `tokens` names"),
    ],
)
def test_what_looks_like_a_secret_is_one_under_any_key(section: str, key: str, value: str, variable: str) -> None:
    said = problem(section, key, value)
    assert variable in said
    assert "hunter2" not in said


def test_secrets_in_lists_and_in_tables_of_lists_are_found() -> None:
    for text in (
        '[far]\nprovider = "openai"\nmodel = "m"\nkeys = ["canary", "canary"]\n',
        '[[policy.rules]]\nname = "a"\npassword = "canary"\n',
    ):
        with pytest.raises(ConfigError, match="a secret must not stand in the file") as caught:
            parse_config(text, "nearfar.toml")
        assert "canary" not in str(caught.value)
        assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    "text",
    [
        '[hub]\nkey = "key.pem"\ntokens = "tokens.toml"\nclient_authority = "authority.pem"\n',
        '[far]\nprovider = "openai"\nmodel = "m"\nkey_variable = "MY_KEY"\nmax_output_tokens = 5\n',
        '[far]\nprovider = "gateway"\naddress = "host:1"\nclient_key = "key.pem"\n',
        '[memory]\npostgres_variable = "DATABASE"\n',
        '[other_far.key]\nprovider = "openai"\nmodel = "m"\n',
    ],
)
def test_names_of_variables_and_files_are_no_secrets(text: str) -> None:
    parse_config(text, "nearfar.toml")


def test_a_configuration_made_in_python_does_not_repeat_what_it_refuses() -> None:
    with pytest.raises(ValueError, match="memory") as caught:
        Config.model_validate({"memory": {"key": SECRET}})
    assert SECRET not in str(caught.value)


def test_unknown_keys_of_sections_with_names_of_their_own_are_compared_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="did you mean 'model'"):
        parse_config('[other_near.second]\nmodle = "x"\n', "nearfar.toml")
    with pytest.raises(ConfigError, match="did you mean 'address'"):
        parse_config('[other_far.second]\nprovider = "gateway"\nadress = "host:1"\n', "nearfar.toml")


def test_the_token_of_a_gateway_may_stand_in_the_keyring(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    entries = {("nearfar", "NEARFAR_TOKEN"): "token-in-the-keyring"}
    monkeypatch.setattr("keyring.get_password", lambda *name: entries.get(name))
    monkeypatch.delenv("NEARFAR_TOKEN", raising=False)

    async def ask() -> str:
        async with serve(ScriptedAgent([], name="there"), f"unix:{tmp_path}/gateway", tokens={"laptop": "token-in-the-keyring"}) as server:
            member = far_handle(parse_far(f"gateway:{server.address}"))
            assert member is not None
            agent = await member.open()
            await agent.aclose()
            return agent.card.name

    assert asyncio.run(ask()) == "there"
