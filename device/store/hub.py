"""The Hugging Face hub: what a repository holds, and its files in the cache that all programs of this user share.

Why this is not `huggingface_hub`: its version 2.4 deletes what an interrupted download has fetched.
"""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from ...protocols import ConfigError, ModelNotFound, NearfarError, Unauthenticated, Unavailable
from ...protocols.errors import from_http_status
from .cache import HubCache, stays_inside
from .index import locked
from .places import HubSettings
from .reference import PREFIX, HubReference
from .transfer import Progress, Transfer

if TYPE_CHECKING:
    import httpx

_SECONDS: Final = 30.0
"""Of silence after which a connection counts as broken."""
_LISTING_BYTES: Final = 64 << 20
"""Of a listing: a file takes about 300."""
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
        if not stays_inside(revision):
            raise ConfigError(f"{revision!r} is no revision", hint="give a branch, a tag or a commit of the repository")
        if self._settings.is_offline:
            return self._cached(repository, revision)
        path = f"/api/models/{repository}/revision/{quote(revision, safe='')}"
        with (
            self._client() as client,
            _reached(client),
            client.stream("GET", path, params={"blobs": "true"}, follow_redirects=True) as response,
        ):
            if not response.is_success:
                raise _refusal(response, repository)
            return _parse(repository, response, _first(response.iter_raw(), _LISTING_BYTES))

    def select(self, reference: HubReference, snapshot: Snapshot) -> list[HubFile]:
        """The files that are meant. Raises as `HubReference.select` does, and `ConfigError` offline if the cache does not hold them."""
        try:
            return [snapshot.files[name] for name in reference.select(snapshot.files)]
        except ModelNotFound as error:
            if self._settings.is_offline:
                raise self._not_cached(str(reference), error.hint) from error
            raise

    def holds(self, snapshot: Snapshot, file: HubFile) -> bool:
        """Whether the cache has the file already."""
        return self._cache.blob(snapshot.repository, file.etag).exists()

    def fetch(self, snapshot: Snapshot, file: HubFile, progress: Progress) -> Path:
        """The file in the cache, fetched if it is not there; of two processes that want it, one fetches.

        Raises as `snapshot` does, and `ConfigError` if the disk is full. What was fetched is kept for the next attempt.
        """
        repository = snapshot.repository
        partial = self._cache.partial(repository, file.name, file.etag)

        def waiting() -> None:
            progress(f"waiting for the process that fetches {file.name}", 0, file.bytes)

        with _written(file), locked(partial.with_suffix(".lock"), waiting=waiting):
            if not self.holds(snapshot, file):
                self._cache.forget_partials(repository, file.name, but=file.etag)
                self._transfer(snapshot, file, partial, progress)
                self._cache.keep(partial, repository, file.etag)
            return self._cache.link(repository, snapshot.commit, file.name, file.etag)

    def head(self, snapshot: Snapshot, file: HubFile, length: int) -> bytes:
        """At most the first `length` bytes of a file. Raises as `snapshot` does."""
        url = _url(snapshot, file)
        with self._client() as client, _reached(client):
            headers = {"Range": f"bytes=0-{length - 1}"}
            with client.stream("GET", url, headers=headers, follow_redirects=True) as response:
                if not response.is_success:
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
            raise self._not_cached(f"{PREFIX}{repository}", "or copy the cache of a machine that has the model")
        files = (HubFile(name, size, etag) for name, size, etag in self._cache.files(repository, commit))
        return Snapshot(repository, commit, {file.name: file for file in files})

    def _not_cached(self, what: str, alternative: str) -> ConfigError:
        message = f"{what} is not in {self._settings.cache}, and HF_HUB_OFFLINE is set"
        return ConfigError(message, hint=f"unset HF_HUB_OFFLINE; {alternative}")

    def _client(self) -> "httpx.Client":
        try:
            import httpx

            from .redirects import PublicTransport
        except ImportError as error:
            message = "fetching models needs packages that are not installed"
            raise ConfigError(message, hint="pip install 'nearfar[models]'") from error

        try:
            transport = PublicTransport(httpx.URL(self._settings.endpoint), self._settings.hosts)
            # httpx drops the token where it is sent on to another host.
            # Without compression, so that positions mean those of the file, and no kilobyte unpacks to gigabytes.
            headers = {"Accept-Encoding": "identity"} | _authorization(self._settings.token)
            return httpx.Client(base_url=self._settings.endpoint, headers=headers, timeout=_SECONDS, transport=transport)
        except httpx.InvalidURL:
            raise ConfigError("HF_ENDPOINT is no address", hint="it is something like https://huggingface.co") from None


def _authorization(token: str | None) -> dict[str, str]:
    """The header with the token. Raises `ConfigError` for what no header can carry, since httpx's own error would show it."""
    if token is None:
        return {}
    if not (token.isascii() and token.isprintable()):
        raise ConfigError("the Hugging Face token has characters that no token has", hint="set HF_TOKEN, or run `hf auth login`, again")
    return {"Authorization": f"Bearer {token}"}


def _url(snapshot: Snapshot, file: HubFile) -> str:
    return f"/{snapshot.repository}/resolve/{snapshot.commit}/{quote(file.name)}"


def _host(url: "httpx.URL") -> str:
    """Without the user and password that may stand in front of it."""
    return url.netloc.decode() or str(url)


@contextmanager
def _reached(client: "httpx.Client") -> Iterator[None]:
    import httpx

    try:
        yield
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:  # the last two for places that are none
        message = f"{_host(client.base_url)} cannot be reached: {str(error) or type(error).__name__}"
        raise Unavailable(message, hint="check the network and HF_ENDPOINT") from error


def _first(blocks: Iterator[bytes], length: int) -> bytes:
    """A server that does not know ranges sends the whole file, which nobody waits for."""
    data = bytearray()
    for block in blocks:
        data += block
        if len(data) >= length:
            break
    return bytes(data[:length])


@contextmanager
def _written(file: HubFile) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{file.name} cannot be written: {error}", hint="check the folder of the cache, and who may write it") from error


def _parse(repository: str, response: "httpx.Response", content: bytes) -> Snapshot:
    try:
        answer = json.loads(content)
        commit = str(answer["sha"])
        files = {file.name: file for file in map(_file, answer.get("siblings") or ())}
        if not _COMMIT.fullmatch(commit) or not all(_is_plain(file) for file in files.values()):
            raise ValueError(commit)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        message = f"{response.url.host} does not answer as the Hugging Face hub does"
        raise Unavailable(message, hint="check HF_ENDPOINT, and whether a proxy stands in between") from error
    return Snapshot(repository, commit, files)


def _file(entry: Mapping[str, Any]) -> HubFile:
    large = entry.get("lfs")
    size, etag = (large["size"], large["sha256"]) if large else (entry["size"], entry["blobId"])
    return HubFile(str(entry["rfilename"]), int(size), str(etag))


def _is_plain(file: HubFile) -> bool:
    """Whether what a server says of a file can be, and the file stays inside the cache."""
    return file.bytes >= 0 and bool(_ETAG.fullmatch(file.etag)) and stays_inside(file.name)


def _refusal(response: "httpx.Response", repository: str) -> NearfarError:
    if response.status_code in (401, 403):
        message = f"hf:{repository} does not exist, or is not open to you"
        return Unauthenticated(message, hint=f"check the name; for a gated model, accept its terms at {response.url.host} and set HF_TOKEN")
    if response.status_code == 404:
        return ModelNotFound(f"there is no hf:{repository}, or not at this revision", hint="check the name, and --revision")
    error = from_http_status(response.status_code, f"{response.url.host} answered {response.status_code} for hf:{repository}")
    error.hint = "run it again later: it goes on from here"
    return error
