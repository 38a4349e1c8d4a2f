"""A memory that is served by itself follows its tokens as other servers do."""

from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from datetime import timedelta
from pathlib import Path

import anyio
import pytest

from nearfar.orchestrator.memory.store import MemoryStore
from nearfar.orchestrator.memory.sync.service import serve_memory
from nearfar.orchestrator.memory.sync.session import connected
from nearfar.protocols import PermissionDenied, Unauthenticated
from nearfar.protocols.items import Tier
from nearfar.protocols.security import Scope
from nearfar.protocols.token_file import add_token, follow_tokens, load_tokens, revoke_tokens, rotate_token

pytestmark = pytest.mark.anyio

USERS = {"phone": "anna", "laptop": "anna"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tokens.toml"


@pytest.fixture
def stores() -> Iterator[dict[str, MemoryStore]]:
    opened = {name: MemoryStore.open(":memory:", user=user, embedder=None) for name, user in {**USERS, "hub": ""}.items()}
    yield opened
    for store in opened.values():
        store.close()


@asynccontextmanager
async def followed(store: MemoryStore, path: Path) -> AsyncIterator[str]:
    """The address of a server of the store, which does what the token file says."""
    async with (
        serve_memory(store, "localhost:0", tokens=load_tokens(path), users=USERS, is_hub=True) as server,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(follow_tokens, path, server.replace_tokens)
        yield server.address
        tasks.cancel_scope.cancel()


async def test_a_revoked_token_ends_the_exchange_that_runs_with_it_and_no_other(stores: dict[str, MemoryStore], path: Path) -> None:
    former = add_token(path, "phone", scopes={Scope.MEMORY})
    add_token(path, "laptop", scopes={Scope.MEMORY})
    later = rotate_token(path, "phone", overlap=timedelta(days=1))
    hello = stores["phone"].replica().hello()
    with anyio.fail_after(20):
        async with (
            followed(stores["hub"], path) as address,
            connected(address, token=former.token) as phone,
            connected(address, token=later.token) as phone_again,
            aclosing(phone.watch(hello)) as ending,
            aclosing(phone_again.watch(hello)) as staying,
        ):
            begun = await anext(ending)
            assert await anext(staying) == begun
            revoke_tokens(path, "phone", id=former.record.id)
            with pytest.raises(Unauthenticated, match="revoked"):
                await anext(ending)
            stores["hub"].put(("notes",), "news", {"text": "tea"}, tier=Tier.SHARED)
            assert await anext(staying) > begun
            with pytest.raises(Unauthenticated, match="wrong"):
                await phone.greet(hello)


async def test_a_token_for_agents_opens_no_memory(stores: dict[str, MemoryStore], path: Path) -> None:
    token = add_token(path, "phone", scopes={Scope.DESCRIBE, Scope.STEPS, Scope.ATTACH}).token
    async with followed(stores["hub"], path) as address, connected(address, token=token) as phone:
        with pytest.raises(PermissionDenied, match="lacks the scope 'memory'"):
            await phone.greet(stores["phone"].replica().hello())
