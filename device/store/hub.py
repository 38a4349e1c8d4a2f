"""The Hugging Face hub: what a repository holds, and its files in the cache that all programs of this user share.

Why this is not `huggingface_hub`: its version 2.4 deletes what an interrupted download has fetched.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from ...protocols import ConfigError, ModelNotFound, NearfarError, Unauthenticated, Unavailable
from ...protocols.errors import from_http_status
from .cache import HubCache
from .index import locked
from .places import HubSettings
from .transfer import Progress, Transfer

if TYPE_CHECKING:
    import httpx

_SECONDS: Final = 30.0
"""Of silence after which a connection counts as broken."""
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_ETAG: Final = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
"""Git's name for a file, or the SHA-256 of a large one."""
_COMMIT: Final = re.compile(r"[0-9a-f]{7,64}")


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a repository."""

    name: str
    bytes: int
    etag: str
    """What the cache calls its content: the SHA-256 of large files, such as all models are."""

    @property
    def sha256(self) -> str | None:
        return self.etag if _SHA256.fullmatch(self.etag) else None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A repository at one commit."""

    repository: str
    commit: str
    files: Mapping[str, HubFile]


class Hub:
    """The hub as `settings` say. Offline, it is what its cache holds."""

    def __init__(self, settings: HubSettings) -> None:
        self._settings = settings
        self._cache = HubCache(settings.cache)

    def snapshot(self, repository: str, revision: str) -> Snapshot:
        """What the repository holds at `revision`: a branch, a tag or a commit.

        Raises `ModelNotFound` if there is none, `Unauthenticated` if it wants a token, `Unavailable` if the hub cannot be reached, and
        `ConfigError` offline if the cache does not hold the revision.
        """
        if self._settings.is_offline:
            return self._cached(repository, revision)
        path = f"/api/models/{repository}/revision/{quote(revision, safe='')}"
        with self._client() as client, _reached(self._settings.endpoint):
            response = client.get(path, params={"blobs": "true"}, follow_redirects=True)
        if not response.is_success:
            raise _refusal(response, repository)
        return _parse(repository, response)

    def holds(self, snapshot: Snapshot, file: HubFile) -> bool:
        """Whether the cache has the file already."""
        return self._cache.blob(snapshot.repository, file.etag).exists()

    def fetch(self, snapshot: Snapshot, file: HubFile, progress: Progress) -> Path:
        """The file in the cache, fetched if it is not there; of two processes that want it, one fetches.

        Raises as `snapshot` does, and `ConfigError` if the disk is full. What was fetched is kept for the next attempt.
        """
        repository = snapshot.repository
        partial = self._cache.partial(repository, file.name, file.etag)
        with locked(partial.with_name(f"{file.name.replace('/', '--')}.lock")):
            if not self.holds(snapshot, file):
                self._cache.forget_partials(repository, file.name, but=file.etag)
                self._transfer(snapshot, file, partial, progress)
                self._cache.keep(partial, repository, file.etag)
            return self._cache.link(repository, snapshot.commit, file.name, file.etag)

    def head(self, snapshot: Snapshot, file: HubFile, length: int) -> bytes:
        """At most the first `length` bytes of a file. Raises as `snapshot` does."""
        url = _url(snapshot, file)
        with self._client() as client, _reached(self._settings.endpoint):
            headers = {"Range": f"bytes=0-{length - 1}", "Accept-Encoding": "identity"}
            with client.stream("GET", url, headers=headers, follow_redirects=True) as response:
                if not response.is_success:
                    response.read()
                    raise _refusal(response, snapshot.repository)
                return _first(response.iter_raw(), length)

    def remember(self, snapshot: Snapshot, revision: str) -> None:
        """Note in the cache which commit the revision was, for when there is no network."""
        self._cache.note_revision(snapshot.repository, revision, snapshot.commit)

    def _transfer(self, snapshot: Snapshot, file: HubFile, partial: Path, progress: Progress) -> None:
        with self._client() as client:
            Transfer(
                client=client,
                url=_url(snapshot, file),
                partial=partial,
                size=file.bytes,
                refuse=lambda response: _refusal(response, snapshot.repository),
                progress=progress,
                title=file.name,
                pause=self._settings.pause,
            ).run()

    def _cached(self, repository: str, revision: str) -> Snapshot:
        commit = self._cache.commit(repository, revision)
        if commit is None:
            message = f"hf:{repository} is not in {self._settings.cache}, and HF_HUB_OFFLINE is set"
            raise ConfigError(message, hint="unset HF_HUB_OFFLINE, or copy the cache of a machine that has the model")
        files = (HubFile(name, size, etag) for name, size, etag in self._cache.files(repository, commit))
        return Snapshot(repository, commit, {file.name: file for file in files})

    def _client(self) -> "httpx.Client":
        try:
            import httpx
        except ImportError as error:
            message = "fetching models needs packages that are not installed"
            raise ConfigError(message, hint="pip install 'nearfar[models]'") from error

        # httpx drops the token where it is sent on to another host.
        headers = {"Authorization": f"Bearer {self._settings.token}"} if self._settings.token else {}
        return httpx.Client(base_url=self._settings.endpoint, headers=headers, timeout=_SECONDS)


def _url(snapshot: Snapshot, file: HubFile) -> str:
    return f"/{snapshot.repository}/resolve/{snapshot.commit}/{quote(file.name)}"


@contextmanager
def _reached(endpoint: str) -> Iterator[None]:
    import httpx

    try:
        yield
    except httpx.HTTPError as error:
        message = f"{endpoint} cannot be reached: {str(error) or type(error).__name__}"
        raise Unavailable(message, hint="check the network and HF_ENDPOINT") from error


def _first(blocks: Iterator[bytes], length: int) -> bytes:
    """A server that does not know ranges sends the whole file, which nobody waits for."""
    data = b""
    for block in blocks:
        data += block
        if len(data) >= length:
            break
    return data[:length]


def _parse(repository: str, response: "httpx.Response") -> Snapshot:
    try:
        answer = response.json()
        commit = str(answer["sha"])
        files = {file.name: file for file in map(_file, answer.get("siblings") or ())}
        if not _COMMIT.fullmatch(commit) or not all(_is_plain(file) for file in files.values()):
            raise ValueError(commit)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        message = f"{response.url.host} does not answer as the Hugging Face hub does"
        raise Unavailable(message, hint="check HF_ENDPOINT, and whether a proxy stands in between") from error
    return Snapshot(repository, commit, files)


def _file(entry: Mapping[str, Any]) -> HubFile:
    large = entry.get("lfs") or {}
    return HubFile(str(entry["rfilename"]), int(large.get("size") or entry.get("size") or 0), str(large.get("sha256") or entry["blobId"]))


def _is_plain(file: HubFile) -> bool:
    """Whether the names that a server sent stay inside the cache."""
    parts = file.name.split("/")
    return bool(_ETAG.fullmatch(file.etag)) and not {"", ".", ".."} & set(parts) and "\\" not in file.name and "\0" not in file.name


def _refusal(response: "httpx.Response", repository: str) -> NearfarError:
    if response.status_code in (401, 403):
        message = f"hf:{repository} does not exist, or is not open to you"
        return Unauthenticated(message, hint=f"check the name; for a gated model, accept its terms at {response.url.host} and set HF_TOKEN")
    if response.status_code == 404:
        return ModelNotFound(f"there is no hf:{repository}, or not at this revision", hint="check the name, and --revision")
    error = from_http_status(response.status_code, f"{response.url.host} answered {response.status_code} for hf:{repository}")
    error.hint = "run it again later: it goes on from here"
    return error
