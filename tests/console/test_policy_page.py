"""A policy is edited as text: it is checked with line and key, explained, and saved at once, or not at all."""

import html
import re
from pathlib import Path

import httpx
import pytest
from busy_console import FILE, busy

from nearfar import ConfigError, Side, VersionConflict
from nearfar.orchestrator.compose.policy_file import PolicyFile, config_with_policy, read_text, save_policy

pytestmark = pytest.mark.anyio
SIDES = {"near": Side.NEAR, "far": Side.FAR}


def form(page: str, **changes: str) -> dict[str, str]:
    """Return the fields of the page's form, with changes."""
    hidden = dict(re.findall(r'<input type="hidden" name="(csrf|over)" value="([^"]*)">', page))
    editor = re.search(r"<textarea[^>]*>\n(.*?)</textarea>", page, re.DOTALL)
    assert editor is not None
    return {**hidden, "text": html.unescape(editor[1]), **changes}


async def sent(browser: httpx.AsyncClient, action: str, **changes: str) -> httpx.Response:
    page = (await browser.get("/console/policy")).text
    return await browser.post(f"/console/policy/{action}", data=form(page, **changes))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (FILE.replace("minimum_confidence", "minimum_confidense"), ("line 4", "minimum_confidense", "minimum_confidence")),
        (FILE.replace('"cascade"', '"cascading"'), ("line 3", "policy.strategy")),
        (FILE.replace("[policy.auto]", "[policy.auto"), ("not valid TOML", "line 6")),
        (FILE.replace('folder = "runs"', 'folder = "elsewhere"'), ("only [policy] can be changed here", "runs")),
        (FILE + '\n[mcp.own]\ncommand = "sh"\n', ("only [policy] can be changed here", "mcp")),
    ],
)
async def test_a_text_that_cannot_be_used_leaves_the_file_and_tells_line_and_key(tmp_path: Path, text: str, told: tuple[str, ...]) -> None:
    async with busy(tmp_path) as console, console.browser() as browser:
        for action in ("check", "save"):
            page = html.unescape((await sent(browser, action, text=text)).text)
            assert all(each in page for each in told)
            assert form(page)["text"] == text
        assert (tmp_path / "nearfar.toml").read_text(encoding="utf-8") == FILE
        assert console.hybrid.policy.strategy == "cascade"


async def test_a_file_that_changed_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    async with busy(tmp_path) as console, console.browser() as browser:
        page = (await browser.get("/console/policy")).text
        newer = FILE + "# by another editor\n"
        (tmp_path / "nearfar.toml").write_text(newer, encoding="utf-8")
        reply = await browser.post("/console/policy/save", data=form(page, text=FILE.replace("0.7", "0.9")))
        assert "was changed meanwhile" in reply.text
        assert (tmp_path / "nearfar.toml").read_text(encoding="utf-8") == newer


async def test_a_prompt_is_explained_under_the_text_and_not_under_the_file(tmp_path: Path) -> None:
    async with busy(tmp_path) as console, console.browser() as browser:
        prompt = "What is the capital of Chile?"
        private = await sent(browser, "explain", prompt=prompt)
        assert "the task is private" in private.text
        far = FILE.replace('strategy = "cascade"', 'strategy = "cloud"')
        public = await sent(browser, "explain", prompt=prompt, public="yes", text=far)
        assert "Who would serve it: far" in public.text
        assert console.hybrid.policy.strategy == "cascade"


async def test_without_recorded_outcomes_simulating_says_what_to_do(tmp_path: Path) -> None:
    async with busy(tmp_path) as console, console.browser() as browser:
        nowhere = FILE.replace("sweep.jsonl", "none.jsonl").replace("router.jsonl", "none.jsonl")
        page = (await sent(browser, "simulate", text=nowhere)).text
        assert "no recorded outcomes" in page
        assert "nearfar sweep" in page
        assert console.hybrid.policy.strategy == "cascade"


def test_a_saved_policy_is_taken_over_and_keeps_the_files_mode(tmp_path: Path) -> None:
    path = tmp_path / "nearfar.toml"
    path.write_text('[policy]\nstrategy = "route"\n', encoding="utf-8")
    path.chmod(0o640)
    file = PolicyFile(path, now=lambda: path.stat().st_mtime + 60)
    _, over = read_text(path)
    save_policy(path, '[policy]\nstrategy = "device"\n', SIDES, over=over)
    assert file.current.strategy == "device"
    assert path.stat().st_mode & 0o777 == 0o640
    assert [each.name for each in tmp_path.iterdir()] == ["nearfar.toml"]
    with pytest.raises(VersionConflict, match="changed meanwhile"):
        save_policy(path, '[policy]\nstrategy = "route"\n', SIDES, over=over)
    assert file.current.strategy == "device"


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_a_saved_file_keeps_its_line_ends_and_its_byte_order_mark(tmp_path: Path, mark: bytes, end: bytes) -> None:
    file = tmp_path / "nearfar.toml"
    content = mark + FILE.encode().replace(b"\n", end)
    file.write_bytes(content)
    text, over = read_text(file)
    assert text == FILE
    save_policy(file, text.replace("0.7", "0.9"), SIDES, over=over)
    assert file.read_bytes() == content.replace(b"0.7", b"0.9")


def test_a_policy_is_checked_against_the_agents_that_there_are(tmp_path: Path) -> None:
    path = tmp_path / "nearfar.toml"
    path.write_text("[policy]\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="cloud"):
        config_with_policy(path, '[policy]\nstrategy = "cloud"\n', {"near": Side.NEAR})
