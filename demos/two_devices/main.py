"""Two devices: a memory in sync through a hub of your own, edits made apart, and an erasure that reaches every copy."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from nearfar import MemoryStore, Tier

NEARFAR = (sys.executable, "-m", "nearfar")
HUB = """
[memory]
path = "hub.db"
embed = false
[hub]
address = "127.0.0.1:0"
tokens = "workers.toml"
memory = true
[hub.workers.laptop]
user = "ana"
[hub.workers.phone]
user = "ana"
"""
DEVICE = """
[memory]
path = "{name}.db"
user = "ana"
tier = "user"
embed = false
[memory.peers.hub]
address = "{address}"
token_variable = "TOKEN"
"""


def nearfar(*arguments: str, token: str = "") -> dict:
    """Run a command of nearfar and return its JSON."""
    environment = {**os.environ, "TOKEN": token}
    return json.loads(subprocess.run([*NEARFAR, *arguments, "--json"], env=environment, stdout=subprocess.PIPE, check=True).stdout)


@contextmanager
def hub() -> Iterator[str]:
    """Serve the hub on this machine and yield its address; a real one runs at home or on a server, with TLS."""
    command = [*NEARFAR, "serve", "hub", "--config", "hub.toml", "--insecure", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            yield json.loads(process.stdout.readline())["address"]
        finally:
            process.terminate()


def open_store(device: str) -> MemoryStore:
    return MemoryStore.open(f"{device}.db", user="ana", tier=Tier.USER, embedder=None)


def sync(tokens: dict[str, str], *devices: str) -> None:
    for device in devices:
        done = nearfar("memory", "sync", "hub", "--yes", "--config", f"{device}.toml", token=tokens[device])
        sent, received = (done[way]["operations"] for way in ("sent", "received"))
        print(f"   {device}: sent {sent}, received {received}, keeps {done['stay_here']} to itself")


def holders(word: str) -> str:
    """Return the databases, logs included, that have a word anywhere in their bytes."""
    return ", ".join(sorted(file.stem for file in Path().glob("*.db*") if word.encode() in file.read_bytes())) or "no file"


def write(tokens: dict[str, str]) -> None:
    print("1. The laptop learns two things; the diary is for this device only")
    with open_store("laptop") as laptop:
        laptop.put(("people", "bob"), "diet", {"text": "Bob is allergic to peanuts.", "table": "any"}, subject="bob")
        laptop.put(("diary",), "monday", {"text": "I am looking for another job."}, tier=Tier.DEVICE)
    sync(tokens, "laptop", "phone")
    with open_store("phone") as phone:
        for question in "What must Bob not eat?", "Which job?":
            found = phone.search((), query=question)
            print(f"   phone, asked {question!r}:", found[0].value["text"] if found else "nothing known")


def edit_apart(tokens: dict[str, str]) -> None:
    print("2. Both devices are offline and change the same item")
    with open_store("laptop") as laptop, open_store("phone") as phone:
        laptop.patch(("people", "bob"), "diet", {"table": "by the window"})
        phone.patch(("people", "bob"), "diet", {"text": "Bob is allergic to peanuts and soy."})
    sync(tokens, "laptop", "phone", "laptop")
    for device in tokens:
        with open_store(device) as store:
            item = store.get(("people", "bob"), "diet")
            print(f"   {device} has: {item.value['text']} Table: {item.value['table']}.")


def erase(tokens: dict[str, str]) -> None:
    print("3. Bob asks to be forgotten; the laptop erases, and the others follow when they sync")
    print("   'peanuts' is in:", holders("peanuts"))
    with open_store("laptop") as laptop:
        laptop.erase(subject="bob")
    sync(tokens, "laptop", "phone")
    print("   'peanuts' is in:", holders("peanuts"), "\n   'another job' is in:", holders("another job"))


def main() -> None:
    Path("hub.toml").write_text(HUB)
    add = ("serve", "token", "add", "--tokens", "workers.toml", "--scope", "memory")
    tokens = {name: nearfar(*add, name)["token"] for name in ("laptop", "phone")}
    with hub() as address:
        for name in tokens:
            Path(f"{name}.toml").write_text(DEVICE.format(name=name, address=address))
        for part in write, edit_apart, erase:
            part(tokens)


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        os.chdir(folder)
        main()
