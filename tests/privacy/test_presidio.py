"""Names are found with Presidio and a model on this machine, and nothing of it reaches a network."""

import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from nearfar.orchestrator.safety.detection import Detectors, NetworkRefused, PresidioDetector, without_network
from nearfar.orchestrator.safety.detection.standard import standard_detectors
from nearfar.protocols import ConfigError


def _connect() -> None:
    with socket.socket() as connection:
        connection.connect(("127.0.0.1", 9))


WAYS_OUT: dict[str, Callable[[], object]] = {
    "a connection": _connect,
    "a datagram": lambda: socket.socket(type=socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", 9)),
    "a name": lambda: socket.getaddrinfo("localhost", 80),
    "a process": lambda: subprocess.run([sys.executable, "-c", ""], check=True),
}


@pytest.mark.parametrize("way", WAYS_OUT)
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # of the socket that was not to send
def test_nothing_gets_out_where_the_network_is_refused(way: str) -> None:
    with pytest.raises(NetworkRefused), without_network():
        WAYS_OUT[way]()


def test_network_is_back_afterwards_and_never_gone_for_other_threads() -> None:
    found: list[object] = []
    go = threading.Event()

    def look_up() -> None:
        go.wait(5)
        found.append(socket.getaddrinfo("127.0.0.1", 80))

    other = threading.Thread(target=look_up)
    other.start()
    with without_network():
        go.set()
        other.join(5)
    look_up()
    assert len(found) == 2


def test_presidio_or_model_that_is_not_installed_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(ConfigError) as raised:
        PresidioDetector("xx_no_such_model")
    assert raised.value.hint


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that knows one person and one town, so that none has to be downloaded."""
    spacy = pytest.importorskip("spacy", reason="the extra presidio is not installed")
    pytest.importorskip("presidio_analyzer", reason="the extra presidio is not installed")
    language = spacy.blank("en")
    ruler = language.add_pipe("entity_ruler")
    ruler.add_patterns([{"label": "PERSON", "pattern": "Ada Lovelace"}, {"label": "GPE", "pattern": "Oslo"}])
    folder = tmp_path_factory.mktemp("spacy") / "model"
    language.to_disk(folder)
    return folder


def test_names_are_found_beside_what_has_a_form(model: Path) -> None:
    text = "Write to Ada Lovelace in Oslo: ada@example.com"
    findings = Detectors([standard_detectors(str(model))], {"person", "place", "email"}).find(text)
    assert [(finding.type, finding.text) for finding in findings] == [
        ("person", "Ada Lovelace"),
        ("place", "Oslo"),
        ("email", "ada@example.com"),
    ]
