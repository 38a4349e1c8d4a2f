"""The learned head in use."""

import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

for extra in ("numpy", "onnxruntime", "tokenizers", "torch", "onnx"):
    pytest.importorskip(extra, reason=f"training the head of these tests needs {extra}")

from head_examples import AGENTS, BOOK, BOOKS, SUM, SUMS, asked, examples
from hypothesis import example, given, settings
from hypothesis import strategies as some

from nearfar.orchestrator.lab.training import train_head, write_head
from nearfar.orchestrator.routing.head import CARD, LIKENESS, WORDS, Head, read_card
from nearfar.orchestrator.util.embedding import MiniLmEmbedder
from nearfar.protocols import ConfigError

ROUTE_ALONE = """
import asyncio, socket, sys

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "onnx"):
            raise ImportError(f"{name} is not installed")

def refuse(*arguments, **named):
    raise OSError("no network")

sys.meta_path.insert(0, NoTorch())
socket.socket = socket.create_connection = socket.getaddrinfo = refuse
from pathlib import Path
from nearfar.orchestrator.util.embedding import MiniLmEmbedder
from nearfar.orchestrator.routing.head import Head

from nearfar.orchestrator.task.modes import Mode
from nearfar.orchestrator.lab.replay import RecordedAgent
from nearfar.orchestrator.routing import Router
from nearfar.orchestrator.task import Policy, Task
from nearfar.protocols import Message, Side

folder = Path(sys.argv[1])
head = Head(folder, MiniLmEmbedder())
policy = Policy.model_validate({"strategy": "route", "sensitivity": "public", "router": {"head": folder}})
task = Task(messages=(Message.user("What is 17 plus 25?"),), task_class="arithmetic/sums", policy=policy)
decision = Router().decide(task, [RecordedAgent(name, Side(name)) for name in ("near", "far")])
assert (decision.mode, decision.predictor) == (Mode.AUTO, "head"), decision
print(head.predict("What is 17 plus 25?", "arithmetic/sums").probabilities["far"])
"""


@pytest.fixture(scope="module")
def embedder() -> MiniLmEmbedder:
    return MiniLmEmbedder()


@pytest.fixture(scope="module")
def folder(embedder: MiniLmEmbedder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("head")
    write_head(train_head(examples(120, embedder=embedder)), folder)
    return folder


@pytest.fixture(scope="module")
def head(folder: Path, embedder: MiniLmEmbedder) -> Head:
    return Head(folder, embedder)


def gain(head: Head, prompt: str, task_class: str = "") -> float:
    probabilities = head.predict(prompt, task_class).probabilities
    return probabilities["far"] - probabilities["near"]


def test_it_tells_where_the_far_agent_gains(head: Head) -> None:
    assert min(gain(head, prompt) for prompt in asked(BOOK)) > 0.4
    assert max(gain(head, prompt) for prompt in asked(SUM)) < 0.2


def test_words_alone_tell_it_too(folder: Path) -> None:
    head = Head(folder)
    assert min(gain(head, prompt) for prompt in asked(BOOK)) > max(gain(head, prompt) for prompt in asked(SUM)) + 0.3
    assert head.predict(asked(BOOK)[0]).similarity is None
    assert head.predict("Namque erit ille mihi semper deus").is_familiar


def test_a_class_moves_the_prediction(head: Head) -> None:
    assert gain(head, "Tell me about it.", BOOKS) > gain(head, "Tell me about it.") > gain(head, "Tell me about it.", SUMS)


def test_a_narrower_class_than_those_met_counts_as_the_wider_one(head: Head) -> None:
    assert head.predict("Tell me about it.", f"{BOOKS}/novels") == head.predict("Tell me about it.", BOOKS)


def test_an_unknown_class_counts_as_none(head: Head) -> None:
    assert head.predict("Tell me about it.", "music/opera") == head.predict("Tell me about it.")


def test_a_prompt_unlike_those_of_training_is_unfamiliar(head: Head) -> None:
    assert sum(head.predict(prompt).is_familiar for prompt in (*asked(BOOK), *asked(SUM))) >= 35
    strange = head.predict("SELECT name FROM users WHERE age > 30 ORDER BY name;\n" * 3)
    assert not strange.is_familiar
    assert strange.similarity is not None
    assert strange.similarity < min(head.predict(prompt).similarity or 0 for prompt in asked(BOOK))


@settings(max_examples=50, deadline=None)
@given(prompt=some.text(some.characters(exclude_categories=())), task_class=some.text(max_size=10))
@example(prompt="", task_class="")
@example(prompt="\ud800 and \udfff", task_class="/")
@example(prompt="\0" * 1000, task_class="\0")
@example(prompt="a long story " * 800_000, task_class=BOOKS)
@example(prompt="x" * 10_000_000, task_class="")
def test_any_prompt_has_probabilities(head: Head, folder: Path, prompt: str, task_class: str) -> None:
    for asked_head in (head, Head(folder)):
        found = asked_head.predict(prompt, task_class)
        assert list(found.probabilities) == list(AGENTS)
        assert all(0 < probability < 1 for probability in found.probabilities.values())


def test_threads_get_the_same_predictions(head: Head) -> None:
    prompts = [*asked(BOOK), *asked(SUM)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(head.predict, prompts)) == [head.predict(prompt) for prompt in prompts]


def test_a_head_for_other_agents_is_refused(head: Head) -> None:
    head.require(["far"])
    head.require(["far", "near"])
    with pytest.raises(ConfigError, match="the head knows near, far and not cloud, edge"):
        head.require(["near", "edge", "cloud"])


def test_routing_needs_no_torch_and_no_network(folder: Path) -> None:
    done = subprocess.run([sys.executable, "-c", ROUTE_ALONE, str(folder)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert 0 < float(done.stdout) < 1


@pytest.mark.parametrize("name", [CARD, WORDS, LIKENESS])
@pytest.mark.parametrize("damage", ["missing", "cut short", "something else"])
def test_a_damaged_head_is_refused(folder: Path, embedder: MiniLmEmbedder, tmp_path: Path, name: str, damage: str) -> None:
    shutil.copytree(folder, tmp_path / "head")
    path = tmp_path / "head" / name
    whole = path.read_bytes()
    path.unlink()
    if damage != "missing":
        path.write_bytes(whole[: len(whole) // 2] if damage == "cut short" else b"\xff\x00 no head")
    with pytest.raises(ConfigError):
        Head(tmp_path / "head", embedder)


def test_a_model_of_another_head_is_refused(folder: Path, embedder: MiniLmEmbedder, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "head")
    single = replace(examples(40, embedder=None), agents=("far",), outcomes=examples(40, embedder=None).outcomes[:, 1:])
    write_head(train_head(single), tmp_path / "single")
    shutil.copy(tmp_path / "single" / WORDS, tmp_path / "head" / WORDS)
    with pytest.raises(ConfigError, match="are of different heads"):
        Head(tmp_path / "head", embedder)


def test_a_head_of_other_features_is_refused(folder: Path, tmp_path: Path) -> None:
    card = read_card(folder).model_copy(update={"features": "hashed/0"})
    (tmp_path / CARD).write_text(card.model_dump_json())
    with pytest.raises(ConfigError, match="trained on features 'hashed/0'"):
        read_card(tmp_path)


def test_a_head_of_another_embedder_is_refused(folder: Path, embedder: MiniLmEmbedder, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "head")
    card = read_card(folder).model_copy(update={"embedder": "another"})
    (tmp_path / "head" / CARD).write_text(card.model_dump_json())
    with pytest.raises(ConfigError, match="trained on embedder 'another'"):
        Head(tmp_path / "head", embedder)


def test_a_card_that_contradicts_itself_is_refused(folder: Path, tmp_path: Path) -> None:
    card = read_card(folder).model_copy(update={"agents": ("near", "far", "third")})
    (tmp_path / CARD).write_text(card.model_dump_json())
    with pytest.raises(ConfigError, match="missing or damaged"):
        read_card(tmp_path)


def test_a_head_without_embeddings_needs_no_embedder(tmp_path: Path, embedder: MiniLmEmbedder) -> None:
    write_head(train_head(examples(60, embedder=None)), tmp_path)
    assert not (tmp_path / LIKENESS).exists()
    assert Head(tmp_path, embedder).predict(asked(BOOK)[0]) == Head(tmp_path).predict(asked(BOOK)[0])
