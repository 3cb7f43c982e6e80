"""By which names a server may be called: what keeps a web page from reaching it under a name of the page's own."""

from collections.abc import Collection
from ipaddress import ip_address

from phaseline.serve.config import ServeConfig
from phaseline.serve.door.problems import Problem


def known_hosts(config: ServeConfig, address: str) -> frozenset[str] | None:
    """Names, in lower case, that a request's Host may have besides IP addresses; None: any.

    Names are looked at where they are given, and where a server without keys listens on a loopback `address`: a page
    whose name is made to lead there (DNS rebinding) is its own origin for a browser, and could ask and read anything.
    """
    if not config.allowed_hosts and (config.api_keys or not ip_address(address).is_loopback):
        return None
    return frozenset(_name(host) for host in ("localhost", config.host, *config.allowed_hosts))


def check_host(header: bytes | None, known: Collection[str]) -> None:
    """Problem 403 unless the header Host has a name that is known or an IP address; a browser always sends one."""
    if header is None:
        return
    host = header.decode("latin-1")
    name = _name(_without_port(host))
    try:
        ip_address(name)
    except ValueError:
        if name not in known:
            message = (
                f"this server is not called {host[:100]!r}: if that name is meant to lead here, start the server "
                "with --allowed-host NAME"
            )
            raise Problem(403, message, type="permission_error", code="host_not_allowed") from None


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _name(host: str) -> str:
    return host.strip().lower().removesuffix(".")
