"""The file of tokens: what is written is read again, and nothing else is taken for tokens."""

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nearfar.protocols import ConfigError, NotFound
from nearfar.protocols.security import ANY_CERTIFICATE, EVERY_SCOPE, Scope, TokenRecord, Tokens, hashed
from nearfar.protocols.testing import eventually
from nearfar.protocols.token_file import (
    add_certificate,
    add_token,
    follow_tokens,
    load_tokens,
    parse_tokens,
    read_tokens,
    render_tokens,
    revoke_tokens,
    rotate_token,
    write_tokens,
)

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
DAY = timedelta(days=1)
SECRET = "0123456789abcdef" * 4

MOMENTS = st.datetimes(datetime(2000, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC)).map(lambda moment: moment.replace(microsecond=0))
RECORDS = st.lists(
    st.builds(
        lambda shown, **fields: TokenRecord(**{shown: fields.pop("digest")}, **fields),
        st.sampled_from(("digest", "certificate")),
        id=st.from_regex(r"[0-9a-f]{8}", fullmatch=True),
        caller=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,20}", fullmatch=True),
        digest=st.binary(min_size=4, max_size=4).map(lambda data: hashed(data.hex())),
        scopes=st.frozensets(st.sampled_from(Scope), min_size=1),
        created=MOMENTS,
        expires=st.none() | MOMENTS,
    ),
    max_size=4,
    unique_by=(lambda record: record.id, lambda record: record.digest or record.certificate),
)


def now() -> datetime:
    return NOW


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tokens.toml"


@given(RECORDS)
def test_what_is_written_is_read_again(records: list[TokenRecord]) -> None:
    assert list(parse_tokens(render_tokens(records), "a file")) == records


@given(RECORDS, st.data())
def test_half_a_file_is_never_taken_for_one_with_fewer_or_better_tokens(records: list[TokenRecord], data: st.DataObject) -> None:
    text = render_tokens(records)
    cut = data.draw(st.integers(0, len(text.rstrip()) - 1))
    with pytest.raises(ConfigError):
        parse_tokens(text[:cut], "a file")


@given(st.text() | st.text(alphabet="[]token=\"'\n #end.1", max_size=60))
@example("token = 1\n[end]")
@example('[[token]]\ncaller = 1\nid = "00000000"\nscopes = "steps"\ncreated = 1\ndigest = []\n[end]')
@example("[end]\n[[token]]\n# [end]")
def test_whatever_stands_in_the_file_it_is_read_or_refused(text: str) -> None:
    with suppress(ConfigError):
        assert all(isinstance(record, TokenRecord) for record in parse_tokens(text, "a file"))


@pytest.mark.parametrize(
    ("line", "changed"),
    [
        (f'digest = "{hashed(SECRET)}"', f'digest = "{SECRET}"'),
        (f'digest = "{hashed(SECRET)}"', f'digest = "{hashed(SECRET)[:-1]}"'),
        ('caller = "laptop"', f'caller = "{SECRET * 2}"'),
        ('caller = "laptop"', 'name = "laptop"'),
        ('scopes = ["steps"]', "scopes = []"),
        ('scopes = ["steps"]', f'scopes = ["{SECRET}"]'),
        ("created = 2026-03-01T12:00:00Z", "created = 2026-03-01T12:00:00"),
        ("created = 2026-03-01T12:00:00Z", f'created = "{SECRET}"'),
        ("created = 2026-03-01T12:00:00Z", "created = 2026-03-01T12:00:00Z\nexpire = 2026-03-02T12:00:00Z"),
        (f'digest = "{hashed(SECRET)}"', f'certificate = "{SECRET}"'),
        (f'digest = "{hashed(SECRET)}"', 'digest = "any"'),
        ("created = 2026-03-01T12:00:00Z", "created = 0001-01-01T00:00:00+23:59"),
        ("created = 2026-03-01T12:00:00Z", "created = 9999-12-31T23:59:59-23:59"),
        ("created = 2026-03-01T12:00:00Z", f"created = {'9' * 5000}"),
        ('scopes = ["steps"]', f"scopes = {'[' * 5000}"),
        (f'digest = "{hashed(SECRET)}"', ""),
        ('caller = "laptop"', 'caller = "laptop"\ncertificate = "any"'),
        ("[end]", ""),
        ("[end]", "[end]\nx = 1"),
    ],
)
def test_a_mistake_in_the_file_is_refused_without_quoting_it(line: str, changed: str) -> None:
    record = TokenRecord(id="0" * 8, caller="laptop", digest=hashed(SECRET), scopes=frozenset({Scope.STEPS}), created=NOW)
    text = render_tokens([record])
    assert line in text
    with pytest.raises(ConfigError) as caught:
        parse_tokens(text.replace(line, changed), "a file")
    assert SECRET not in str(caught.value)
    assert hashed(SECRET)[7:20] not in str(caught.value)


@pytest.mark.parametrize("last", ["", "# [end]\n", "x = 1 # [end]"])
def test_a_token_below_the_end_is_refused_since_it_may_be_half_there(last: str) -> None:
    text = render_tokens([TokenRecord(id="0" * 8, caller="laptop", digest=hashed(SECRET), created=NOW)])
    with pytest.raises(ConfigError, match="last line"):
        parse_tokens(text.replace("# Tokens", "[end]\n# Tokens").removesuffix("[end]\n") + last, "a file")


def test_a_file_of_the_former_format_says_what_to_do(path: Path) -> None:
    path.write_text(f'laptop = "{SECRET}"\n')
    path.chmod(0o600)
    with pytest.raises(ConfigError, match="nearfar serve token add") as caught:
        read_tokens(path)
    assert SECRET not in str(caught.value)


def test_two_callers_cannot_share_a_token() -> None:
    records = [TokenRecord(id=id, caller=id, digest=hashed(SECRET), created=NOW) for id in ("00000001", "00000002")]
    with pytest.raises(ConfigError, match="share"):
        parse_tokens(render_tokens(records), "a file")


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "write",
    [
        lambda path: None,
        lambda path: path.write_bytes(b"\xff"),
        lambda path: path.mkdir(),
        lambda path: os.mkfifo(path, 0o600),
        lambda path: path.symlink_to("/dev/zero"),
    ],
)
def test_a_file_that_cannot_be_read_says_how_to_make_one(path: Path, write: Callable[[Path], object]) -> None:
    write(path)
    with pytest.raises(ConfigError, match="nearfar serve token add"):
        read_tokens(path)


def test_a_file_is_made_for_its_owner_only_and_holds_no_token(path: Path) -> None:
    made = {caller: add_token(path, caller, scopes=EVERY_SCOPE, now=now) for caller in ("laptop", "phone")}
    assert load_tokens(path) == tuple(each.record for each in made.values())
    assert path.stat().st_mode & 0o777 == 0o600
    assert all(len(each.token) == 64 and each.token not in path.read_text() + repr(each) for each in made.values())
    assert [file.name for file in path.parent.iterdir()] == ["tokens.toml"]


def test_a_file_that_others_can_read_is_refused(path: Path) -> None:
    add_token(path, "laptop", scopes=EVERY_SCOPE)
    path.chmod(0o640)
    for use in (read_tokens, lambda path: add_token(path, "phone", scopes=EVERY_SCOPE)):
        with pytest.raises(ConfigError, match="chmod 600"):
            use(path)


def test_a_file_without_a_token_opens_no_gateway(path: Path) -> None:
    write_tokens(path, [])
    assert read_tokens(path) == ()
    with pytest.raises(ConfigError, match="no token"):
        load_tokens(path)


def test_a_link_to_the_file_stays_one(path: Path) -> None:
    link = path.with_name("link.toml")
    link.symlink_to(path)
    add_token(link, "laptop", scopes=EVERY_SCOPE)
    assert link.is_symlink()
    assert read_tokens(link) == read_tokens(path)


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="missing"):
        add_token(tmp_path / "missing" / "tokens.toml", "laptop", scopes=EVERY_SCOPE)
    path = tmp_path / "tokens.toml"
    with pytest.raises(ConfigError, match="name"):
        add_token(path, "../laptop", scopes=EVERY_SCOPE)
    assert not path.exists()


def test_a_caller_gets_its_second_token_by_rotation_only(path: Path) -> None:
    first = add_token(path, "laptop", scopes={Scope.STEPS}, lifetime=30 * DAY, now=now)
    with pytest.raises(ConfigError, match="rotate"):
        add_token(path, "laptop", scopes=EVERY_SCOPE)
    later = NOW + 10 * DAY
    second = rotate_token(path, "laptop", overlap=DAY, now=lambda: later)
    assert second.record.scopes == {Scope.STEPS}
    assert second.record.expires == later + 30 * DAY
    assert [(record.digest, record.expires) for record in read_tokens(path)] == [
        (hashed(first.token), later + DAY),
        (hashed(second.token), later + 30 * DAY),
    ]


def test_a_rotation_lets_no_token_live_longer(path: Path) -> None:
    add_token(path, "laptop", scopes=EVERY_SCOPE, lifetime=DAY, now=now)
    rotate_token(path, "laptop", overlap=7 * DAY, now=now)
    assert read_tokens(path)[0].expires == NOW + DAY


def test_a_caller_has_two_good_tokens_at_most(path: Path) -> None:
    add_token(path, "phone", scopes=EVERY_SCOPE, now=now)
    add_token(path, "laptop", scopes=EVERY_SCOPE, now=now)
    rotate_token(path, "laptop", overlap=DAY, now=now)
    with pytest.raises(ConfigError, match="has 2 valid tokens"):
        rotate_token(path, "laptop", overlap=DAY, now=now)
    third = rotate_token(path, "laptop", overlap=timedelta(), now=now)
    assert [record.id for record in read_tokens(path) if record.caller == "laptop"] == [third.record.id]
    rotate_token(path, "laptop", overlap=DAY, now=now)
    fifth = rotate_token(path, "laptop", overlap=DAY, scopes={Scope.MEMORY}, now=lambda: NOW + 2 * DAY)  # the third is expired by then
    assert len(read_tokens(path)) == 3
    assert fifth.record.scopes == {Scope.MEMORY}


def test_a_certificate_takes_the_place_of_a_token_and_stays_when_a_token_is_rotated(path: Path) -> None:
    shown = (ANY_CERTIFICATE, hashed("a certificate"))
    of_any, of_one = (add_certificate(path, "laptop", each, scopes=EVERY_SCOPE, now=now) for each in shown)
    with pytest.raises(NotFound, match="certificate"):
        rotate_token(path, "laptop", overlap=DAY)
    with pytest.raises(ConfigError, match="certificate"):
        add_certificate(path, "phone", hashed("a certificate"), scopes=EVERY_SCOPE)
    add_token(path, "laptop", scopes=EVERY_SCOPE)
    token = rotate_token(path, "laptop", overlap=timedelta())
    assert read_tokens(path) == (of_any, of_one, token.record)
    assert [record.id for record in revoke_tokens(path, "laptop")] == [of_any.id, of_one.id, token.record.id]


def test_one_token_or_all_of_a_caller_are_revoked(path: Path) -> None:
    first = add_token(path, "laptop", scopes=EVERY_SCOPE)
    phone = add_token(path, "phone", scopes=EVERY_SCOPE)
    second = rotate_token(path, "laptop", overlap=DAY)
    with pytest.raises(NotFound, match="ids"):
        revoke_tokens(path, "laptop", id=phone.record.id)
    assert [record.id for record in revoke_tokens(path, "laptop", id=first.record.id)] == [first.record.id]
    assert [record.id for record in revoke_tokens(path, "laptop")] == [second.record.id]
    with pytest.raises(NotFound, match="phone"):
        revoke_tokens(path, "laptop")
    with pytest.raises(NotFound):
        rotate_token(path, "laptop", overlap=DAY)
    assert [record.caller for record in read_tokens(path)] == ["phone"]


def test_processes_that_add_tokens_at_once_lose_none(path: Path) -> None:
    program = """
import sys
from pathlib import Path
from nearfar.protocols.token_file import add_token
from nearfar.protocols.security import EVERY_SCOPE
for number in range(20):
    add_token(Path(sys.argv[1]), f"{sys.argv[2]}-{number}", scopes=EVERY_SCOPE)
"""
    writers = [subprocess.Popen([sys.executable, "-c", program, path, name]) for name in ("left", "right")]
    assert [writer.wait(60) for writer in writers] == [0, 0]
    assert {record.caller for record in read_tokens(path)} == {f"{name}-{number}" for name in ("left", "right") for number in range(20)}


def test_a_change_that_fails_leaves_the_file_as_it_was(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_token(path, "laptop", scopes=EVERY_SCOPE)
    before = path.read_text()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConfigError, match="No space left"):
        add_token(path, "phone", scopes=EVERY_SCOPE)
    assert path.read_text() == before
    assert [file.name for file in path.parent.iterdir()] == ["tokens.toml"]


def test_a_circle_of_links_is_an_error_with_a_hint(path: Path) -> None:
    path.symlink_to(path.name)
    with pytest.raises(ConfigError, match=path.name):
        add_token(path, "laptop", scopes=EVERY_SCOPE)


@pytest.mark.anyio
async def test_a_server_follows_a_file_whose_size_and_time_stay_the_same(path: Path) -> None:
    add_token(path, "laptop", scopes=EVERY_SCOPE)
    seen: list[Tokens] = []
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(follow_tokens, path, seen.append)
            await eventually(lambda: len(seen) == 1)
            status, text = path.stat(), path.read_text()
            (former,) = read_tokens(path)
            path.write_text(text.replace(former.id, "f" * 8))
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
            assert (path.stat().st_size, path.stat().st_mtime_ns, path.stat().st_ino) == (status.st_size, status.st_mtime_ns, status.st_ino)
            await eventually(lambda: len(seen) == 2)
            tasks.cancel_scope.cancel()
    assert [record.id for record in seen[1] if isinstance(record, TokenRecord)] == ["f" * 8]
