"""Download a file such that an interruption costs nothing, take checksums, and keep files in Hugging Face's cache.

The cache has the layout that Hugging Face's own programs use, so that no file is fetched or kept twice:
https://huggingface.co/docs/huggingface_hub/guides/manage-cache
"""

import hashlib
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from ...protocols import ConfigError, NearfarError, Unavailable
from ...protocols.system import file_locks, is_full, replace_text

if TYPE_CHECKING:
    import httpx

import socket
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from urllib.request import getproxies, proxy_bypass

import httpx

Progress = Callable[[str, int, int], None]
"""Is told what is being done, and how many bytes out of how many it is done with."""

_BLOCK: Final = 1 << 20
_MOST_FAILURES: Final = 5
"""In a row, without a byte in between."""
_PARTIAL_CONTENT: Final = 206
_RANGE_NOT_SATISFIABLE: Final = 416


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """A file on its way to this machine."""

    client: "httpx.Client"
    url: str
    partial: Path
    """The file that grows."""
    size: int
    """Bytes of the whole file."""
    refuse: Callable[["httpx.Response"], NearfarError]
    """Makes the error for an answer that is no content."""
    progress: Progress
    title: str
    pause: float
    """Seconds to wait before the first further attempt; each next one waits twice as long."""

    def run(self) -> None:
        """Bring `partial` to its size, from where an earlier attempt left it.

        Raises what `refuse` makes, `Unavailable` if the connection keeps failing, and `ConfigError` if the disk is full; `partial` is kept
        for the next attempt in any case.
        """
        import httpx

        self.partial.parent.mkdir(parents=True, exist_ok=True)
        self._drop_links()
        self.partial.touch()
        failures, most = 0, self._have()
        while (have := self._have()) != self.size:
            self._check_room(have)
            fault = "it ended too early"
            try:
                self._continue(have)
            except (httpx.RequestError, httpx.InvalidURL, UnicodeError) as error:  # the last two for invalid URLs
                fault = str(error) or type(error).__name__
            if self._have() > most:
                failures, most = 0, self._have()
                continue
            failures += 1
            if failures == _MOST_FAILURES:
                hint = "check the network, then run it again: the download resumes"
                raise Unavailable(f"{self.title} cannot be fetched: {fault}", hint=hint)
            time.sleep(self.pause * 2 ** (failures - 1))

    def _drop_links(self) -> None:
        """Delete `partial` where it is anything but a file of its own, so that nothing is written through a link."""
        try:
            found = self.partial.lstat()
        except FileNotFoundError:
            return
        if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
            self.partial.unlink()

    def _have(self) -> int:
        """Return the bytes that are there; 0 if there are too many, for those belong to another file."""
        size = self.partial.stat().st_size if self.partial.exists() else 0
        return size if size <= self.size else 0

    def _continue(self, have: int) -> None:
        headers = {"Range": f"bytes={have}-"} if have else {}
        with self.client.stream("GET", self.url, headers=headers, follow_redirects=True) as response:
            if response.status_code == _RANGE_NOT_SATISFIABLE or self._is_other_part(response, have):
                self.partial.unlink(missing_ok=True)
                return
            if not response.is_success:
                raise self.refuse(response)
            # A server that does not know ranges sends the whole file.
            start = have if response.status_code == _PARTIAL_CONTENT else 0
            with self.partial.open("r+b" if start else "wb") as file:
                file.seek(start)
                self._write(response, file, start)

    def _is_other_part(self, response: "httpx.Response", have: int) -> bool:
        """Return True if the server sends another part than the missing one of this file."""
        expected = f"bytes {have}-{self.size - 1}/{self.size}"
        return response.status_code == _PARTIAL_CONTENT and response.headers.get("Content-Range") != expected

    def _write(self, response: "httpx.Response", file: BinaryIO, have: int) -> None:
        for block in response.iter_raw():
            have += len(block)
            if have > self.size:
                raise Unavailable(f"{self.title} is longer than the {self.size} bytes that were announced", hint="run it again")
            try:
                file.write(block)
                file.flush()
            except OSError as error:
                raise self._explain(error) from error
            self.progress(f"fetching {self.title}", have, self.size)

    def _check_room(self, have: int) -> None:
        missing, free = self.size - have, shutil.disk_usage(self.partial.parent).free
        if free < missing:
            message = f"{self.title} needs {missing / 1e6:.0f} MB more, and {free / 1e6:.0f} MB are free in {self.partial.parent}"
            raise ConfigError(message, hint="free some space, or set HF_HUB_CACHE to a folder on another disk")

    def _explain(self, error: OSError) -> OSError | ConfigError:
        if not is_full(error):
            return error
        message = f"the disk is full: {self._have()} of the {self.size} bytes of {self.title} are in {self.partial.parent}"
        return ConfigError(message, hint="free some space and run it again: the download resumes; or set HF_HUB_CACHE to another disk")


def sha256_of(path: Path, progress: Progress) -> str:
    """Return the file's checksum, in hexadecimal."""
    digest, size, done = hashlib.sha256(), path.stat().st_size, 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
            done += len(block)
            progress(f"checking {path.name}", done, size)
    return digest.hexdigest()


_NAME_BYTES: Final = 255
"""Most bytes of one part of a path, on all file systems in use."""


def stays_inside(name: str) -> bool:
    """Return True if a name with slashes, of a file or a revision, leads nowhere but below its folder."""
    parts = name.split("/")
    try:
        is_short = all(len(part.encode()) <= _NAME_BYTES for part in parts)
    except UnicodeEncodeError:  # half a surrogate pair, which JSON can hold and a file name cannot
        return False
    return is_short and not {"", ".", ".."} & set(parts) and "\\" not in name and "\0" not in name


def content_of(path: Path) -> Path | None:
    """Return where the content of a file in a cache lies. None: the file, or its link's target, is outside of its repository.

    The store must not move or delete such a file: another program put it, or the link to it, there.
    """
    snapshots = next((parent for parent in path.parents if parent.name == "snapshots"), None)
    if snapshots is None:
        return None
    content = Path(os.path.realpath(path))  # `resolve` raises for a circle of links
    if path.is_symlink():
        return content if content.parent == (snapshots.parent / "blobs").resolve() else None
    return content if content.is_relative_to(snapshots.resolve()) else None


class HubCache:
    """The cache in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def blob(self, repository: str, etag: str) -> Path:
        """Return the path of a file's content, whether or not it exists."""
        return self._repository(repository) / "blobs" / etag

    def partial(self, repository: str, name: str, etag: str) -> Path:
        """Return the path at which content grows until it is complete, in a folder that no other program reads."""
        flat = name.replace("/", "--")
        if len(flat.encode()) + 1 + len(etag) > _NAME_BYTES:
            flat = hashlib.sha256(flat.encode()).hexdigest()
        return self._growing(repository) / f"{flat}.{etag}"

    def forget_partials(self, repository: str, name: str, *, but: str) -> None:
        """Delete what was fetched of other versions of the file."""
        keep = self.partial(repository, name, but)
        for path in self._growing(repository).iterdir():
            if path.stem == keep.stem and path != keep and path.suffix != ".lock":
                path.unlink(missing_ok=True)

    def keep(self, partial: Path, repository: str, etag: str) -> None:
        """Make complete content part of the cache, at once or not at all."""
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        blob = self.blob(repository, etag)
        blob.parent.mkdir(parents=True, exist_ok=True)
        partial.replace(blob)

    def link(self, repository: str, commit: str, name: str, etag: str) -> Path:
        """Link the file's own name to its content, and return the link."""
        path = self._repository(repository) / "snapshots" / commit / name
        path.parent.mkdir(parents=True, exist_ok=True)
        target = os.path.relpath(self.blob(repository, etag), path.parent)
        if not path.exists():
            path.unlink(missing_ok=True)  # A link may have lost its content.
            path.symlink_to(target)
        return path

    def note_revision(self, repository: str, revision: str, commit: str) -> None:
        path = self._repository(repository) / "refs" / revision
        if revision != commit:
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_text(path, commit)

    def commit(self, repository: str, revision: str) -> str | None:
        """Return the commit that `revision` was when it was last looked up; None: unknown."""
        folder = self._repository(repository)
        try:
            return (folder / "refs" / revision).read_text(encoding="utf-8").strip()
        except OSError:
            return revision if (folder / "snapshots" / revision).is_dir() else None

    def files(self, repository: str, commit: str) -> Iterator[tuple[str, int, str]]:
        """Name, size and etag of each complete file."""
        folder = self._repository(repository) / "snapshots" / commit
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                yield path.relative_to(folder).as_posix(), path.stat().st_size, path.resolve().name

    def _repository(self, repository: str) -> Path:
        return self._folder / f"models--{repository.replace('/', '--')}"

    def _growing(self, repository: str) -> Path:
        return self._repository(repository) / ".incomplete"


@contextmanager
def locked(path: Path, *, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Keep other processes that lock `path` out of the block; they wait, and call `waiting` before they do."""
    path.parent.mkdir(parents=True, exist_ok=True)
    locks = file_locks("fetching a model")
    with path.open("a") as file:
        try:
            locks.flock(file, locks.LOCK_EX | locks.LOCK_NB)
        except BlockingIOError:
            waiting()
            locks.flock(file, locks.LOCK_EX)
        yield


_PORTS: Final = {"http": 80, "https": 443}
_EMBEDDING: Final = IPv6Network("64:ff9b::/96")
"""NAT64: the last four bytes are an address of IPv4 (RFC 6052)."""
Resolved = list[IPv4Address | IPv6Address]


class PublicTransport(httpx.BaseTransport):
    """Sends requests to the hub itself, and those that it redirects to hosts with public addresses or among those named.

    A redirect keeps the scheme or turns to https. The address that was checked is the one that is connected to, so that a name
    that resolves to another one a moment later (DNS rebinding) gains nothing. Behind a proxy, the proxy resolves names, and only addresses
    that are written out are checked. Raises `Unavailable` for a redirect to anywhere else.
    """

    def __init__(self, endpoint: httpx.URL, named: Iterable[str]) -> None:
        self._endpoint = endpoint
        self._named = frozenset(name.strip().lower() for name in named)
        self._transports: dict[tuple[str, str | None], httpx.HTTPTransport] = {}
        """By host, so that no connection whose certificate was checked for one is used for another, and by proxy."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        url, proxy = request.url, _proxy_for(request.url)
        if not self._is_named(url):
            self._check_scheme(url)
            address = _public_address(url, resolves=proxy is None)
            if address is not None:
                request = _with_address(request, address)
        response = self._transport(url.host, proxy).handle_request(request)
        if not response.has_redirect_location:
            return response
        # httpx would read the body of a redirect to its end, which may never come.
        response.close()
        return httpx.Response(response.status_code, headers=response.headers)

    def close(self) -> None:
        for transport in self._transports.values():
            transport.close()

    def _is_named(self, url: httpx.URL) -> bool:
        """Return whether the configuration names the host: as the endpoint, or among those to which it may redirect."""
        if _origin(url) == _origin(self._endpoint):
            return True
        if url.scheme not in (self._endpoint.scheme, "https"):
            return False
        host = f"[{url.host}]" if ":" in url.host else url.host
        return not self._named.isdisjoint((url.host, host, f"{host}:{_port(url)}"))

    def _check_scheme(self, url: httpx.URL) -> None:
        if url.scheme not in (self._endpoint.scheme, "https"):
            message = f"{self._endpoint.host} redirects from {self._endpoint.scheme} to {url.scheme}://{url.host}"
            raise Unavailable(message, hint="files that are fetched over https stay on https; ask the operator of the hub")

    def _transport(self, host: str, proxy: str | None) -> httpx.HTTPTransport:
        if (host, proxy) not in self._transports:
            with _guard_settings("TLS settings", "correct or unset SSL_CERT_FILE, SSL_CERT_DIR and SSLKEYLOGFILE"):
                tls = httpx.create_ssl_context()
            with _guard_settings(
                "proxy settings", "correct or unset HTTPS_PROXY, HTTP_PROXY and ALL_PROXY; SOCKS: pip install 'httpx[socks]'"
            ):
                self._transports[host, proxy] = httpx.HTTPTransport(verify=tls, proxy=proxy)
        return self._transports[host, proxy]


@contextmanager
def _guard_settings(settings: str, hint: str) -> Iterator[None]:
    """Raise `ConfigError` where httpx cannot use what the environment says; its own error may show a proxy's password."""
    try:
        yield
    except (ImportError, ValueError, OSError, httpx.InvalidURL) as error:
        raise ConfigError(f"the {settings} of the environment cannot be used ({type(error).__name__})", hint=hint) from None


def is_public(address: IPv4Address | IPv6Address) -> bool:
    """Return whether an address, and the one of IPv4 that it may stand for, is one of the public internet."""
    if isinstance(address, IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo or (None, None))[1]
        if inner is None and address in _EMBEDDING:
            inner = IPv4Address(address.packed[-4:])
        if inner is not None:
            return is_public(inner)
        if address.is_site_local:  # fec0::/10, the forerunner of fc00::/7
            return False
    return address.is_global and not address.is_multicast and not address.is_reserved


def _public_address(url: httpx.URL, *, resolves: bool) -> IPv4Address | IPv6Address | None:
    """Return the address to connect to; None: a proxy looks the name up. Raises `Unavailable` if any address of the host is not public."""
    try:
        found: Resolved = [ip_address(url.host)]
    except ValueError:
        if not resolves:
            return None
        found = _resolve(url)
    if hidden := [address for address in found if not is_public(address)]:
        message = f"the model hub redirects to {url.host} ({hidden[0]}), which is not on the public internet"
        raise Unavailable(message, hint="if it is yours, name it in NEARFAR_MODEL_HOSTS; else ask the operator of the hub")
    return found[0]


def _resolve(url: httpx.URL) -> Resolved:
    try:
        answers = socket.getaddrinfo(url.host, _port(url), type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # an impossible host name raises UnicodeError
        raise httpx.ConnectError(f"{url.host}: {error}") from error
    return [ip_address(str(place[0]).partition("%")[0]) for *_, place in answers]


def _with_address(request: httpx.Request, address: IPv4Address | IPv6Address) -> httpx.Request:
    """Address the request to an IP address, and keep the host's name in its headers and for the check of the certificate."""
    extensions = {**request.extensions, "sni_hostname": request.url.host}
    url = request.url.copy_with(host=str(address))
    return httpx.Request(request.method, url, headers=request.headers, stream=request.stream, extensions=extensions)


def _proxy_for(url: httpx.URL) -> str | None:
    """Return the proxy that the environment names for an address."""
    if proxy_bypass(url.host):
        return None
    proxies = getproxies()
    proxy = proxies.get(url.scheme) or proxies.get("all")
    return None if not proxy else proxy if "://" in proxy else f"http://{proxy}"


def _port(url: httpx.URL) -> int | None:
    return url.port or _PORTS.get(url.scheme)


def _origin(url: httpx.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, _port(url)
