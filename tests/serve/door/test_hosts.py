"""By which names a server may be called, at its socket."""

import json
from pathlib import Path

import pytest

from phaseline.errors import RequestError
from phaseline.serve.config import ServeConfig
from phaseline.serve.door.hosts import known_hosts
from support.server import Answer, Server, serving

EVIL = ["evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example", "", ":80", "[a]", "é"]


def ask(server: Server, host: str, path: str = "/v1/models") -> Answer:
    return server.ask(path, headers={"Host": host})


@pytest.mark.parametrize("path", ["/", "/live", "/health", "/metrics", "/v1/models", "/v1/completions", "/nothing"])
def test_a_page_that_makes_its_own_name_lead_here_learns_nothing(server: Server, path: str) -> None:
    answer = ask(server, "evil.example:8000", path)
    error = json.loads(answer.body)["error"]
    assert answer.status == 403 and set(error) == {"message", "type", "param", "code"}
    assert error["code"] == "host_not_allowed"
    assert "evil.example" in error["message"] and "--allowed-host" in error["message"]


@pytest.mark.parametrize("host", EVIL)
def test_other_names_are_refused(server: Server, host: str) -> None:
    assert ask(server, host).status == 403


@pytest.mark.parametrize(
    "host", ["localhost", "LocalHost:8000", "localhost.:1", "127.0.0.1", "192.168.1.2:80", "[::1]:8000", "[::1]"]
)
def test_localhost_and_addresses_are_not(server: Server, host: str) -> None:
    assert ask(server, host).status == 200


def test_the_description_tells_of_it(server: Server) -> None:
    for path in server.ask("/openapi.json").json["paths"].values():
        for operation in path.values():
            assert "403" in operation["responses"]


def test_an_allowed_name_is_taken_and_others_are_refused_also_with_a_key(tiny: Path) -> None:
    options = ["--allowed-host", "models.example", "--allowed-host", "Other", "--api-key", "secret"]
    with serving(tiny, *options) as server:
        for host in ("models.example", "MODELS.example:443", "other", "127.0.0.1"):
            assert ask(server, host, "/health").status == 200
        assert ask(server, "evil.example", "/health").status == 403
        assert ask(server, "models.example").status == 401


@pytest.mark.parametrize(
    ("address", "settings", "known"),
    [
        ("127.0.0.1", {}, True),
        ("127.0.1.1", {"host": "Box"}, True),
        ("::1", {}, True),
        ("127.0.0.1", {"api_keys": ("key",)}, False),
        ("0.0.0.0", {}, False),
        ("::", {}, False),
        ("192.168.1.2", {}, False),
        ("0.0.0.0", {"allowed_hosts": ("a.example",)}, True),
    ],
)
def test_names_matter_on_loopback_without_keys_and_where_they_are_given(
    address: str, settings: dict[str, object], known: bool
) -> None:
    config = ServeConfig("model", **settings)  # type: ignore[arg-type]
    names = known_hosts(config, address)
    assert (names is not None) == known
    if names is not None:
        assert {"localhost", config.host.lower()} <= names


@pytest.mark.parametrize("name", ["", "http://a.example", "a.example:80", "a/b", "*", "a b"])
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(RequestError, match=r"^allowed_hosts = "):
        ServeConfig("model", allowed_hosts=(name,))
