"""What was erased is in no file, whatever happened before and meanwhile."""

import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest
from sqlite_writes import ALL, Vector, files_of, forget, put

from nearfar.orchestrator.memory.engine import Change
from nearfar.orchestrator.memory.operation import Meta
from nearfar.orchestrator.memory.sqlite import SqliteEngine
from nearfar.orchestrator.memory.sqlite import tables as scrubbing
from nearfar.orchestrator.memory.sync.keys import SubjectKeys, tag_of
from nearfar.protocols import StoreUnavailable
from nearfar.protocols.items import ItemAddress

WIDTH = 32
PREFIX = "kanari"


class Canaries:
    """Texts, keys and vectors that occur nowhere else."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._numbers = numpy.random.default_rng(seed)
        self.gone: list[tuple[str, Vector]] = []
        self.present: dict[ItemAddress, tuple[str, Vector]] = {}

    def write(self, engine: SqliteEngine, address: ItemAddress) -> None:
        """Put an item of any size with a canary in the middle."""
        word = f"{PREFIX}{self._random.getrandbits(64):x}"
        numbers = self._numbers.standard_normal(WIDTH).astype(numpy.float32)
        filling = " ".join(f"w{self._random.randrange(3000)}" for _ in range(self._random.choice([3, 30, 300, 2000])))
        value = {"text": f'{filling} {word} "quoted" {filling}', word: {"nested": [word, "ü" + word]}}
        put(engine, address, value, vectors=[numbers], meta=Meta(subject=word))
        self.lose(address)
        self.present[address] = word, numbers

    def lose(self, address: ItemAddress) -> None:
        if address in self.present:
            self.gone.append(self.present.pop(address))

    def live(self, engine: SqliteEngine, steps: int) -> None:
        """Put, overwrite, delete and forget items at random."""
        for _ in range(steps):
            address = ItemAddress(("notes", str(self._random.randrange(5))), str(self._random.randrange(steps // 15)))
            act = self._random.random()
            if act < 0.6:
                self.write(engine, address)
            elif act < 0.8:
                put(engine, address, None)
                self.lose(address)
            else:
                forget(engine, address)
                self.lose(address)

    def found(self, folder: Path) -> list[str]:
        """In which files something is left of what is gone."""
        files = files_of(folder)
        assert not any(PREFIX.encode(encoding) in data for encoding in ("utf-16-le", "utf-16-be") for data in files.values())
        return [f"{word} in {name}" for word, vector in self.gone for name, data in files.items() if _is_in(data, word, vector)]


def _is_in(data: bytes, word: str, vector: Vector) -> bool:
    # The index of words may have shortened it by what it shares with its neighbour.
    return word.removeprefix(PREFIX).encode() in data or vector.tobytes()[8:24] in data


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[SqliteEngine]:
    opened = SqliteEngine(tmp_path / "memory.db", embedder=f"test/{WIDTH}")
    yield opened
    opened.close()


# With these seeds SQLite leaves copies of rows in gaps between others, which `secure_delete` does not prevent.
@pytest.mark.parametrize("seed", [0, 6])
def test_nothing_of_what_is_gone_is_left_in_any_file(engine: SqliteEngine, tmp_path: Path, seed: int) -> None:
    canaries = Canaries(seed)
    canaries.live(engine, 300)
    assert len(canaries.gone) > 50
    assert canaries.found(tmp_path)
    engine.scrub()
    assert canaries.found(tmp_path) == []
    for address, (word, vector) in canaries.present.items():
        (by_word,) = engine.keyword(word, ALL, limit=10)
        (by_meaning,) = engine.nearest(vector, ALL, limit=1)
        assert by_word.row == by_meaning.row
        assert engine.numbered([by_word.row])[by_word.row].address == address


def test_an_erasure_with_another_engine_open_leaves_nothing_and_that_one_goes_on(engine: SqliteEngine, tmp_path: Path) -> None:
    other = SqliteEngine(tmp_path / "memory.db", embedder=f"test/{WIDTH}")
    canaries = Canaries(7)
    canaries.live(engine, 60)
    ((_, vector), *_) = canaries.present.values()
    before = len(other.nearest(vector, ALL, limit=100))
    gone = list(canaries.present)[0]
    forget(engine, gone)
    canaries.lose(gone)
    engine.scrub()
    assert canaries.found(tmp_path) == []
    assert len(other.nearest(vector, ALL, limit=100)) == before - 1
    other.close()


def test_a_reader_of_an_older_state_makes_a_scrub_fail_until_it_is_done(
    engine: SqliteEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrubbing, "PATIENCE", 0.0)
    canaries = Canaries(3)
    canaries.live(engine, 40)
    with engine._connections.reading() as connection:
        connection.execute("PRAGMA busy_timeout = 0")
        connection.execute("SELECT * FROM items").fetchone()
        with engine._connections.outside() as writer:
            writer.execute("PRAGMA busy_timeout = 0")
        with pytest.raises(StoreUnavailable, match="older state"):
            engine.scrub()
    assert canaries.found(tmp_path)
    engine.close()
    SqliteEngine(tmp_path / "memory.db").close()
    assert canaries.found(tmp_path) == []


def test_operations_about_somebody_are_readable_for_as_long_as_all_their_keys_exist(tmp_path: Path) -> None:
    pytest.importorskip("cryptography", reason="subjects' keys are part of an extra")
    keys = SubjectKeys(tmp_path / "memory.keys")
    engine = SqliteEngine(tmp_path / "memory.db", sealer=keys)
    of_ann, of_bob, of_nobody = (ItemAddress(("notes",), key) for key in ("ann", "bob", "nobody"))
    put(engine, of_ann, {"text": "Ann's secret"}, meta=Meta(subject="Ann"))
    put(engine, of_bob, {"text": "Bob's secret"}, meta=Meta(subject="bAnn"))
    put(engine, of_nobody, {"text": "no secret"})
    with engine._connections.reading() as connection:
        payloads = [payload for (payload,) in connection.execute("SELECT payload FROM operations ORDER BY position")]
    assert [b"secret" in payload for payload in payloads] == [False, False, True]
    assert [operation.address for _, operation, _ in engine.operations(0, limit=10)] == [of_ann, of_bob, of_nobody]
    keys.destroy(keys.retire(tag_of("Ann"), ""))
    assert [operation.address for _, operation, _ in engine.operations(0, limit=1)] == [of_bob]
    with engine.transaction() as transaction:
        assert transaction.heads([of_ann, of_bob]).keys() == {of_bob}
    put(engine, of_ann, {"text": "a new beginning"}, meta=Meta(subject="Ann"))
    former = keys.retire(tag_of("Ann"), "")
    with engine.transaction() as transaction:
        heads = transaction.heads([of_ann])[of_ann]
        transaction.apply([Change(of_ann, heads, None)])
    keys.destroy(former)
    assert [operation.address for _, operation, _ in engine.operations(0, limit=10)] == [of_bob, of_nobody, of_ann]
    engine.close()
    keys.close()


_KILLED_IN_MID_ERASE = """
import sys
from nearfar.orchestrator.memory.engine import Change
from nearfar.orchestrator.memory.operation import ItemAddress
from nearfar.orchestrator.memory.engine import ItemSelection
from nearfar.orchestrator.memory.sqlite import SqliteEngine
engine = SqliteEngine(sys.argv[1], embedder="test/32")
rows = engine.select(ItemSelection(now=0), limit=1000, offset=0)
with engine.transaction() as transaction:
    transaction.apply([Change(row.address, (), None) for row in rows])
print("forgotten", flush=True)
engine.scrub()
print("scrubbed", flush=True)
input()
"""


@pytest.mark.parametrize("last_word", ["forgotten", "scrubbed"])
def test_an_erasure_that_is_killed_is_finished_by_the_next_to_open_the_store(engine: SqliteEngine, tmp_path: Path, last_word: str) -> None:
    canaries = Canaries(11)
    canaries.live(engine, 100)
    engine.close()
    command = [sys.executable, "-c", _KILLED_IN_MID_ERASE, str(tmp_path / "memory.db")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        while child.stdout.readline().strip() != last_word:
            pass
        child.send_signal(signal.SIGKILL)
    for address in list(canaries.present):
        canaries.lose(address)
    SqliteEngine(tmp_path / "memory.db").close()
    assert canaries.found(tmp_path) == []
