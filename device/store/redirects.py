"""Follow a hub's redirects to public addresses only: what a server answers must not make this machine ask its own network."""

import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import Final
from urllib.request import getproxies, proxy_bypass

import httpx

from ...protocols import ConfigError, Unavailable

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
