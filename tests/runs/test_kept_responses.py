"""Kept responses: each is its owner's alone, continues the ones before it, and ends with its run."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from nearfar.orchestrator.runs import sessions
from nearfar.orchestrator.runs.sessions import KeptResponse, KeptResponses
from nearfar.orchestrator.runs.store import RunStore
from nearfar.orchestrator.task.stores import RunsConfig
from nearfar.protocols import NotFound

pytestmark = pytest.mark.anyio


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunStore]:
    opened = RunStore.open(RunsConfig(folder=tmp_path))
    yield opened
    opened.close()


@pytest.fixture(params=["in memory", "with the runs"])
def kept(request: pytest.FixtureRequest) -> KeptResponses:
    return KeptResponses(request.getfixturevalue("store") if request.param == "with the runs" else None)


def response(name: str, *, behind: str | None = None) -> KeptResponse:
    said = [{"type": "message", "id": f"msg_{name}"}]
    return KeptResponse(
        session="talk",
        run=f"run-{name}",
        input=({"role": "user", "content": name},),
        response={"id": name, "output": said, "previous_response_id": behind},
    )


async def test_a_response_is_read_again_by_its_owner_alone(kept: KeptResponses) -> None:
    await kept.keep(response("one"), "ana")
    assert await kept.get("one", "ana") == response("one")
    for name, user in (("one", "ben"), ("two", "ana")):
        with pytest.raises(NotFound):
            await kept.get(name, user)


async def test_a_chain_holds_input_and_output_of_all_its_responses_in_order(kept: KeptResponses) -> None:
    for name, behind in (("one", None), ("two", "one"), ("three", "two")):
        await kept.keep(response(name, behind=behind), "ana")
    chain = await kept.chain("three", "ana")
    assert [item.get("content") or item["id"] for item in chain.items] == ["one", "msg_one", "two", "msg_two", "three", "msg_three"]
    assert (chain.session, chain.is_private) == ("talk", True)


async def test_a_deleted_response_is_gone_and_cannot_be_continued(kept: KeptResponses) -> None:
    await kept.keep(response("one"), "ana")
    await kept.keep(response("two", behind="one"), "ana")
    with pytest.raises(NotFound):
        await kept.delete("one", "ben")
    await kept.delete("one", "ana")
    with pytest.raises(NotFound):
        await kept.chain("two", "ana")


async def test_memory_keeps_the_last_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "_MOST", 2)
    kept = KeptResponses(None)
    for name in ("one", "two", "three"):
        await kept.keep(response(name), "ana")
    with pytest.raises(NotFound):
        await kept.get("one", "ana")
    assert (await kept.get("three", "ana")).run == "run-three"


async def test_memory_keeps_so_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(response("one").model_dump_json())
    monkeypatch.setattr(sessions, "_MOST_BYTES", 2 * size)
    kept = KeptResponses(None)
    for name in ("one", "two", "six"):
        await kept.keep(response(name), "ana")
    with pytest.raises(NotFound):
        await kept.get("one", "ana")
    await kept.delete("two", "ana")
    await kept.keep(response("ten"), "ana")
    assert (await kept.get("six", "ana")).run == "run-six"


async def test_a_response_survives_a_restart(tmp_path: Path) -> None:
    first = RunStore.open(RunsConfig(folder=tmp_path))
    await KeptResponses(first).keep(response("one"), "ana")
    first.close()
    second = RunStore.open(RunsConfig(folder=tmp_path))
    assert await KeptResponses(second).get("one", "ana") == response("one")
    second.close()
