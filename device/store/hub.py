"""The Hugging Face hub: `hf:` references, the files of a repository, and their copies in the cache that all programs of this user share.

Why this is not `huggingface_hub`: its version 2.4 deletes what an interrupted download has fetched.
"""

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import quote

from ...protocols import ConfigError, ModelNotFound, NearfarError, Unauthenticated, Unavailable
from ...protocols.errors import from_http_status
from ..gguf import PART
from .download import HubCache, Progress, Transfer, locked, stays_inside

if TYPE_CHECKING:
    import httpx


_TRUE: Final = ("1", "on", "yes", "true")


@dataclass(frozen=True, slots=True, kw_only=True)
class HubOptions:
    """The address of the hub, and the folder in which all programs that use it keep its files."""

    endpoint: str = "https://huggingface.co"
    token: str | None = None
    hosts: tuple[str, ...] = ()
    """Hosts that the hub may redirect to in addition to the public internet: `HOST` or `HOST:PORT`."""
    cache: Path
    is_offline: bool = False
    pause: float = 0.5
    """Seconds before a broken connection is tried again the first time."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """Read `HF_ENDPOINT`, `HF_TOKEN`, `HF_TOKEN_PATH`, `HF_HOME`, `HF_HUB_CACHE` and `HF_HUB_OFFLINE`.

        And `NEARFAR_MODEL_HOSTS`, the `hosts` with commas between them. The others' meaning:
        https://huggingface.co/docs/huggingface_hub/package_reference/environment_variables
        """
        caches = environment.get("XDG_CACHE_HOME") or "~/.cache"
        home = _folder(environment.get("HF_HOME") or f"{caches}/huggingface")
        token = _folder(environment.get("HF_TOKEN_PATH") or home / "token")
        return cls(
            endpoint=(environment.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/"),
            token=environment.get("HF_TOKEN", "").strip() or _read_token(token),
            hosts=tuple(filter(None, map(str.strip, environment.get("NEARFAR_MODEL_HOSTS", "").split(",")))),
            cache=_folder(environment.get("HF_HUB_CACHE") or home / "hub"),
            is_offline=environment.get("HF_HUB_OFFLINE", "").lower() in _TRUE,
        )


def _folder(text: str | Path) -> Path:
    """Return the place that a variable of Hugging Face's names, as their own programs read it."""
    return Path(os.path.expandvars(os.path.expanduser(text)))


def _read_token(path: Path) -> str | None:
    """Return the token that `hf auth login` saved."""
    try:
        return path.read_text(encoding="utf-8").strip() or None
    except (OSError, UnicodeDecodeError):
        return None


PREFIX: Final = "hf:"
_REFERENCE: Final = re.compile(r"hf:(?P<repository>[\w.-]+/[\w.-]+)(?::(?P<selector>[^\\\s]*))?", re.ASCII)
_QUANT: Final = re.compile(r"(?:^|[-._/])((?:UD-)?(?:I?Q\d+\w*|TQ\d_\d|MXFP4\w*|NVFP4\w*|BF16|F16|FP16|F32))(?=$|[-._/])", re.IGNORECASE)
_NO_MODEL: Final = re.compile(r"(^|/)(mmproj|imatrix)", re.IGNORECASE)
"""Image encoders and calibration data, which lie next to the models they belong to."""


@dataclass(frozen=True, slots=True)
class HubReference:
    """A model of a Hugging Face repository."""

    repository: str
    selector: str
    """A file's name, or a quantisation as it stands in one, such as `Q8_0`; empty: the only one there is."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises `ConfigError` if it is none."""
        match = _REFERENCE.fullmatch(text)
        if match is None or ".." in text:
            raise ConfigError(f"{text!r} does not name a model of a repository", hint="write hf:OWNER/REPOSITORY:QUANT, or :FILE.gguf")
        return cls(match["repository"], match["selector"] or "")

    def __str__(self) -> str:
        return f"{PREFIX}{self.repository}:{self.selector}" if self.selector else f"{PREFIX}{self.repository}"

    def select(self, names: Iterable[str]) -> tuple[str, ...]:
        """Choose the files of the model among all files of the repository: one, or the parts of a split model in order.

        Raises `ModelNotFound` if there is none, and `ConfigError` if several models fit; both name those that there are.
        """
        models = models_among(names)
        if not models:
            hint = "repositories with GGUF files mostly have names that end in -GGUF"
            raise ModelNotFound(f"{PREFIX}{self.repository} has no GGUF file", hint=hint)
        fitting = [files for title, files in models.items() if self._fits(title, files)]
        there_are = f"there are {', '.join(sorted(labels_of(models).values()))}"
        if not fitting:
            raise ModelNotFound(f"{PREFIX}{self.repository} has no {self.selector!r}", hint=there_are)
        if len(fitting) > 1:
            raise ConfigError(f"{self} fits {len(fitting)} models", hint=f"name one of them: {there_are}")
        return _complete(fitting[0])

    def means(self, file: str) -> bool:
        """Return True if the reference fits the model whose first or only file this is."""
        return any(self._fits(title, files) for title, files in models_among([file]).items())

    def _fits(self, title: str, files: Sequence[str]) -> bool:
        if self.selector.lower().endswith(".gguf"):
            return any(self.selector in (name, name.rpartition("/")[2]) for name in files)
        return not self.selector or self.selector.lower() in (quant_of(title).lower(), title.lower())


def models_among(names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Group a repository's files by model: names without number and suffix, each with one file, or several if it is split."""
    models: dict[str, list[str]] = {}
    for name in sorted(names):
        if name.lower().endswith(".gguf") and not _NO_MODEL.search(name):
            part = PART.fullmatch(name)
            models.setdefault(part["stem"] if part else name[: -len(".gguf")], []).append(name)
    return {title: tuple(files) for title, files in models.items()}


def quant_of(title: str) -> str:
    """Return the quantisation in a model's name, else the name."""
    found = _QUANT.findall(title)
    return str(found[-1]) if found else title


def labels_of(titles: Iterable[str]) -> dict[str, str]:
    """Label a repository's models so that they can be told apart: by quantisation, or by the whole name if several have the same one."""
    quants = {title: quant_of(title) for title in titles}
    counts = Counter(quants.values())
    return {title: quant if counts[quant] == 1 else title for title, quant in quants.items()}


def _complete(files: tuple[str, ...]) -> tuple[str, ...]:
    part = PART.fullmatch(files[0])
    if part is not None and len(files) != int(part["count"]):
        raise ModelNotFound(f"{part['stem']} has {len(files)} of {int(part['count'])} parts", hint="the repository is incomplete")
    return files


_SECONDS: Final = 30.0
"""Seconds of silence after which a connection counts as broken."""
_LISTING_BYTES: Final = 64 << 20
"""Most bytes of a listing: a file takes about 300."""
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
    """The cache's name for the content: the SHA-256 of large files, such as all models are."""

    @property
    def sha256(self) -> str | None:
        return self.etag if _SHA256.fullmatch(self.etag) else None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A repository at one commit."""

    repository: str
    commit: str
    files: Mapping[str, HubFile]


class ModelHub:
    """The hub as `settings` say. Offline, it is what its cache holds."""

    def __init__(self, settings: HubOptions) -> None:
        self._settings = settings
        self._cache = HubCache(settings.cache)

    def snapshot(self, repository: str, revision: str) -> Snapshot:
        """List the files of the repository at `revision`: a branch, a tag or a commit.

        Raises `ModelNotFound` if there is none, `Unauthenticated` if it wants a token, `Unavailable` if the hub cannot be reached, and
        `ConfigError` offline if the cache does not hold the revision.
        """
        if not stays_inside(revision):
            raise ConfigError(f"{revision!r} is not a valid revision", hint="give a branch, a tag or a commit of the repository")
        if self._settings.is_offline:
            return self._snapshot_in_cache(repository, revision)
        path = f"/api/models/{repository}/revision/{quote(revision, safe='')}"
        with (
            self._client() as client,
            _explain_network_errors(client),
            client.stream("GET", path, params={"blobs": "true"}, follow_redirects=True) as response,
        ):
            if not response.is_success:
                raise _refusal(response, repository)
            return _parse(repository, response, _first(response.iter_raw(), _LISTING_BYTES))

    def select(self, reference: HubReference, snapshot: Snapshot) -> list[HubFile]:
        """Return the files that a reference means. Raises as `HubReference.select` does, and `ConfigError` offline if the cache lacks
        them."""
        try:
            return [snapshot.files[name] for name in reference.select(snapshot.files)]
        except ModelNotFound as error:
            if self._settings.is_offline:
                raise self._not_cached(str(reference), error.hint) from error
            raise

    def holds(self, snapshot: Snapshot, file: HubFile) -> bool:
        """Return True if the cache has the file already."""
        return self._cache.blob(snapshot.repository, file.etag).exists()

    def fetch(self, snapshot: Snapshot, file: HubFile, progress: Progress) -> Path:
        """Fetch a file that is not in the cache, and return its path there. If two processes want it, one fetches.

        Raises as `snapshot` does, and `ConfigError` if the disk is full. Bytes that were fetched are kept for the next attempt.
        """
        repository = snapshot.repository
        partial = self._cache.partial(repository, file.name, file.etag)

        def waiting() -> None:
            progress(f"waiting for the process that fetches {file.name}", 0, file.bytes)

        with _explain_disk_errors(file), locked(partial.with_suffix(".lock"), waiting=waiting):
            if not self.holds(snapshot, file):
                self._cache.forget_partials(repository, file.name, but=file.etag)
                self._transfer(snapshot, file, partial, progress)
                self._cache.keep(partial, repository, file.etag)
            return self._cache.link(repository, snapshot.commit, file.name, file.etag)

    def head(self, snapshot: Snapshot, file: HubFile, length: int) -> bytes:
        """Fetch at most the first `length` bytes of a file. Raises as `snapshot` does."""
        url = _url(snapshot, file)
        with self._client() as client, _explain_network_errors(client):
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

    def _snapshot_in_cache(self, repository: str, revision: str) -> Snapshot:
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

            from .download import PublicTransport
        except ImportError as error:
            message = "fetching models needs packages that are not installed"
            raise ConfigError(message, hint="pip install 'nearfar[models]'") from error

        try:
            transport = PublicTransport(httpx.URL(self._settings.endpoint), self._settings.hosts)
            # httpx drops the token if it is redirected to another host.
            # No compression: ranges then count the file's own bytes, and no kilobyte unpacks to gigabytes.
            headers = {"Accept-Encoding": "identity"} | _authorization(self._settings.token)
            return httpx.Client(base_url=self._settings.endpoint, headers=headers, timeout=_SECONDS, transport=transport)
        except httpx.InvalidURL:
            raise ConfigError("HF_ENDPOINT is not a valid URL", hint="it is something like https://huggingface.co") from None


def _authorization(token: str | None) -> dict[str, str]:
    """Return the header with the token. Raises `ConfigError` for a token that no header can carry, since httpx's own error would show
    it."""
    if token is None:
        return {}
    if not (token.isascii() and token.isprintable()):
        raise ConfigError("the Hugging Face token contains invalid characters", hint="set HF_TOKEN, or run `hf auth login`, again")
    return {"Authorization": f"Bearer {token}"}


def _url(snapshot: Snapshot, file: HubFile) -> str:
    return f"/{snapshot.repository}/resolve/{snapshot.commit}/{quote(file.name)}"


def _host(url: "httpx.URL") -> str:
    """Return host and port, without the user and password that may stand in front of them."""
    return url.netloc.decode() or str(url)


@contextmanager
def _explain_network_errors(client: "httpx.Client") -> Iterator[None]:
    import httpx

    try:
        yield
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:  # the last two for invalid URLs
        message = f"{_host(client.base_url)} cannot be reached: {str(error) or type(error).__name__}"
        raise Unavailable(message, hint="check the network and HF_ENDPOINT") from error


def _first(blocks: Iterator[bytes], length: int) -> bytes:
    """Return the first bytes of a stream. A server that does not know ranges sends the whole file; the rest is not awaited."""
    data = bytearray()
    for block in blocks:
        data += block
        if len(data) >= length:
            break
    return bytes(data[:length])


@contextmanager
def _explain_disk_errors(file: HubFile) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{file.name} cannot be written: {error}", hint="check the cache folder and its permissions") from error


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
    """Return True if the server's figures for a file are possible, and the file stays inside the cache."""
    return file.bytes >= 0 and bool(_ETAG.fullmatch(file.etag)) and stays_inside(file.name)


def _refusal(response: "httpx.Response", repository: str) -> NearfarError:
    if response.status_code in (401, 403):
        message = f"hf:{repository} does not exist, or you have no access to it"
        return Unauthenticated(message, hint=f"check the name; for a gated model, accept its terms at {response.url.host} and set HF_TOKEN")
    if response.status_code == 404:
        return ModelNotFound(f"there is no hf:{repository}, or not at this revision", hint="check the name, and --revision")
    error = from_http_status(response.status_code, f"{response.url.host} answered {response.status_code} for hf:{repository}")
    error.hint = "run it again later: the download resumes"
    return error
