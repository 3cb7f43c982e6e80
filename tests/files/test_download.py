"""Fetching URLs from a server that drops, changes, refuses and lies."""

import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaseline.errors import PhaselineError, PullError
from phaseline.files.zoo import pull, resolve
from support.file_server import BODY, Resource, Server, files, serving


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("NO_PROXY", "*")
    with serving() as running:
        yield running


@pytest.fixture(scope="module")
def shared_server() -> Iterator[Server]:
    with serving() as running:
        yield running


def test_a_url_is_fetched_once(server: Server, tmp_path: Path) -> None:
    url = server.add("/m.gguf", Resource())
    seen: list[tuple[int, int | None]] = []
    path = pull(url, cache=tmp_path, progress=lambda done, total: seen.append((done, total)))
    assert path.read_bytes() == BODY and path.name == "m.gguf" and files(tmp_path) == ["m.gguf"]
    assert seen[-1] == (len(BODY), len(BODY)) and seen == sorted(seen)
    lock = path.with_name("m.gguf.lock")
    lock.unlink()
    lock.mkdir()  # a file that is here needs no lock, so a cache that can't be written serves too
    assert pull(url, cache=tmp_path) == path == resolve(url, cache=tmp_path)
    assert len(server.requests) == 1


def test_dropped_connections_resume_within_one_pull(server: Server, tmp_path: Path) -> None:
    url = server.add("/m.gguf", Resource(faults=[1000, 5000, 1]))
    assert pull(url, cache=tmp_path, waits=()).read_bytes() == BODY
    assert server.asked("Range") == [None, "bytes=1000-", "bytes=6000-", "bytes=6001-"]
    assert server.asked("If-Range") == [None, '"v1"', '"v1"', '"v1"']


def interrupt(server: Server, cache: Path, resource: Resource, at: int = 3000) -> str:
    """Ctrl-C in a pull of /m.gguf after `at` bytes."""
    url = server.add("/m.gguf", replace(resource, faults=[at]))

    def press(done: int, total: int | None) -> None:
        if done == at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull(url, cache=cache, progress=press)
    assert files(cache) == ["m.gguf.part", "m.gguf.part.json"]
    server.requests.clear()
    return url


def test_an_interrupted_pull_is_resumed_by_the_next(server: Server, tmp_path: Path) -> None:
    url = interrupt(server, tmp_path, Resource())
    assert pull(url, cache=tmp_path).read_bytes() == BODY
    assert server.asked("Range") == ["bytes=3000-"] and files(tmp_path) == ["m.gguf"]


@pytest.mark.parametrize(
    ("later", "requests"),
    [
        (Resource(ranges=False), 1),
        (Resource(refuse_ranges=True), 2),
        (Resource(body=BODY[:2000]), 2),  # shrunk under the same tag: 416
        (Resource(body=b"GGUF" + BODY, etag='"v2"'), 1),
        (Resource(body=b"GGUF" + BODY[:3:-1], etag='"v2"', if_range=False), 2),  # only the tag tells
        (Resource(body=b"GGUF" + BODY, if_range=False), 2),  # only the length tells
        (Resource(skew=-1000), 2),
    ],
    ids=["ignores-range", "416", "shrunk", "changed", "changed-ignores-if-range", "grown", "another-range"],
)
def test_a_resumed_file_is_never_two_in_one(server: Server, tmp_path: Path, later: Resource, requests: int) -> None:
    url = interrupt(server, tmp_path, Resource())
    server.add("/m.gguf", later)
    assert pull(url, cache=tmp_path, waits=(0,)).read_bytes() == later.body
    assert len(server.requests) == requests


@pytest.mark.parametrize("etag", [None, 'W/"v1"'])
def test_what_nothing_identifies_is_fetched_anew(server: Server, tmp_path: Path, etag: str | None) -> None:
    url = interrupt(server, tmp_path, Resource(etag=etag))
    assert pull(url, cache=tmp_path).read_bytes() == BODY and server.asked("Range") == [None]


def test_last_modified_identifies_too(server: Server, tmp_path: Path) -> None:
    date = "Fri, 07 Feb 2025 10:00:00 GMT"
    url = interrupt(server, tmp_path, Resource(etag=None, headers={"Last-Modified": date}, if_range=False))
    assert pull(url, cache=tmp_path).read_bytes() == BODY
    assert server.asked("Range") == ["bytes=3000-"] and server.asked("If-Range") == [date]


@settings(max_examples=30, deadline=None)
@given(
    versions=st.lists(st.binary(max_size=400), min_size=1, max_size=3),
    cuts=st.lists(st.integers(0, 300), min_size=3, max_size=6),
    ranges=st.booleans(),
    if_range=st.booleans(),
)
def test_any_course_of_drops_ends_with_the_last_version(
    shared_server: Server, versions: list[bytes], cuts: list[int], ranges: bool, if_range: bool
) -> None:
    with tempfile.TemporaryDirectory() as name:
        cache = Path(name)
        for number, version in enumerate(versions):
            last = number == len(versions) - 1
            resource = Resource(b"GGUF" + version, f'"{number}"', ranges=ranges, if_range=if_range)
            resource.faults = list(cuts) if last else [cuts[number], -404]
            url = shared_server.add("/any.gguf", resource)
            if last:
                assert pull(url, cache=cache, waits=(0,) * 8).read_bytes() == resource.body
                assert files(cache) == ["any.gguf"]
            else:
                with suppress(PullError):
                    path = pull(url, cache=cache, waits=())
                    assert path.read_bytes() == resource.body
                    path.unlink()


def test_a_server_that_recovers_is_tried_again(server: Server, tmp_path: Path) -> None:
    url = server.add("/m.gguf", Resource(faults=[-503, 0, 100, -429]))
    assert pull(url, cache=tmp_path, waits=(0, 0)).read_bytes() == BODY and len(server.requests) == 5


def test_a_server_that_stays_down_leaves_what_came(server: Server, tmp_path: Path) -> None:
    url = server.add("/m.gguf", Resource(faults=[100, -503, -503]))
    with pytest.raises(PullError, match="503 Service Unavailable; 100 bytes are kept"):
        pull(url, cache=tmp_path, waits=(0,))
    assert files(tmp_path) == ["m.gguf.part", "m.gguf.part.json"]


@pytest.mark.parametrize(
    ("resource", "message"),
    [
        (Resource(faults=[-404]), "404 Not Found"),
        (Resource(faults=[-401]), "401 Unauthorized .*HF_TOKEN"),
        (Resource(length=len(BODY) + 1), f"closed at {len(BODY)} of {len(BODY) + 1} bytes"),
        (Resource(length=-1), "does not say where the file ends"),
        (Resource(faults=[5000] * 2, chunked=True, etag=None), "connection was lost"),
        (Resource(headers={"Content-Encoding": "gzip"}), "gzip-encoded"),
        (Resource(body=b"<html>please log in</html>"), "not a GGUF file"),
        (Resource(faults=[-302], headers={"Location": "file:///etc/passwd"}), "redirects to file:"),
        (Resource(faults=[-302] * 20, headers={"Location": "/m.gguf"}), "more than 10 redirects"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_refusals_leave_nothing_under_the_final_name(
    server: Server, tmp_path: Path, resource: Resource, message: str
) -> None:
    url = server.add("/m.gguf", resource)
    with pytest.raises(PullError, match=message):
        pull(url, cache=tmp_path, waits=(0,))
    assert "m.gguf" not in files(tmp_path)
    with pytest.raises(PhaselineError, match="phaseline pull http"):
        resolve(url, cache=tmp_path)


def test_a_chunked_body_is_whole_when_it_says_so(server: Server, tmp_path: Path) -> None:
    assert pull(server.add("/m.gguf", Resource(chunked=True)), cache=tmp_path).read_bytes() == BODY


def test_nobody_listening_is_a_pull_error(tmp_path: Path, server: Server) -> None:
    with pytest.raises(PullError, match=r"127\.0\.0\.1:9/m\.gguf: no answer"):
        pull("http://127.0.0.1:9/m.gguf?signature=secret", cache=tmp_path, waits=())


def test_pulls_of_one_file_at_once_fetch_it_once(server: Server, tmp_path: Path) -> None:
    gate = threading.Event()
    url = server.add("/m.gguf", Resource(gate=gate))
    paths: list[Path] = []
    threads = [threading.Thread(target=lambda: paths.append(pull(url, cache=tmp_path))) for _ in range(4)]
    for thread in threads:
        thread.start()
    gate.set()
    for thread in threads:
        thread.join()
    assert len(paths) == 4 and {path.read_bytes() for path in paths} == {BODY}
    assert len(server.requests) == 1 and files(tmp_path) == ["m.gguf"]
