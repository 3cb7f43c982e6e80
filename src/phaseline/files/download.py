"""Fetch one URL into a `.part` file that a later try, or a later process, resumes.

Beside `x.part` lies `x.part.json`: what the server said identifies those bytes. A resumed try sends it back
(`If-Range`, RFC 9110 section 13.1.5), so that bytes of two versions of a file never meet in one.
"""

import hashlib
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from email.message import Message
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from urllib import request as http
from urllib.parse import quote, urljoin, urlsplit

from phaseline.errors import PullError

Progress = Callable[[int, int | None], None]  # (bytes here so far, bytes in all or None while unknown)

WAITS = (1.0, 2.0, 4.0)  # seconds before each retry in a row that follows no new byte
TIMEOUT = 30.0  # seconds of silence that count as a lost connection
HOPS = 10
BLOCK = 1 << 18
TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})


@dataclass(frozen=True)
class Link:
    """A URL and the bearer token that its own origin, and no other, may see."""

    url: str
    token: str = field(default="", repr=False)


@dataclass(frozen=True)
class Marks:
    """What identifies the bytes of a `.part` file; `validator` is what `If-Range` sends back."""

    url: str  # sha256 of the URL: a signed query is not written to disk
    validator: str | None
    total: int | None
    sha256: str | None  # the digest that a model hub declares for the file


class _Interrupted(Exception):
    """The connection or the server failed in a way that another try may mend."""


def download(
    link: Link,
    part: Path,
    *,
    size: int | None = None,
    progress: Progress | None = None,
    waits: Sequence[float] = WAITS,
) -> str | None:
    """Fill `part` with all of `link`; return the sha256 that the server declared, if it did.

    `size` in bytes, when known, must be what the server offers. A try that brought new bytes is followed by the
    next at once, others after the pauses of `waits` (seconds). PullError leaves `part` to be resumed; OSError is
    this machine's (disk full, permission).
    """
    (_, furthest), pauses = _kept(part, link.url), iter(waits)
    while True:
        try:
            return _attempt(link, part, size, progress or (lambda done, total: None)).sha256
        except _Interrupted as error:
            _, reached = _kept(part, link.url)
            if reached > furthest:
                furthest, pauses = reached, iter(waits)
                continue
            pause = next(pauses, None)
            if pause is None:
                again = f"; {reached} bytes are kept, pull again to resume" if reached else ""
                raise PullError(f"{shown(link.url)}: {error}{again}") from error
            time.sleep(pause)


def discard(part: Path) -> None:
    """Remove a `.part` file and its marks."""
    part.unlink(missing_ok=True)
    _marks_path(part).unlink(missing_ok=True)


def shown(url: str) -> str:
    """The URL as messages may print it: a query can carry a signature, a host a password."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


def _attempt(link: Link, part: Path, size: int | None, progress: Progress) -> Marks:
    """One connection: resume `part` if its marks allow, fill it, return its marks."""
    marks, have = _kept(part, link.url)
    if marks and have == marks.total:
        return marks
    headers = {"User-Agent": "phaseline", "Accept-Encoding": "identity"}
    if marks and marks.validator:
        headers |= {"Range": f"bytes={have}-", "If-Range": marks.validator}
    response, declared = _open(link, headers)
    with response:
        offered = _marks_of(response, link.url, declared)
        if response.status == 206:
            if not marks or not _continues(response.headers, marks, offered, have):
                discard(part)
                raise _Interrupted("the file changed between two tries")
            offered = replace(offered, validator=marks.validator, sha256=offered.sha256 or marks.sha256)
        else:
            have = 0  # the server sends everything: it ignores ranges, or the file is another one now
        if size is not None and offered.total not in (None, size):
            raise PullError(f"{shown(link.url)}: the server offers {offered.total} bytes, {size} were expected")
        with part.open("ab" if have else "wb") as out:
            _marks_path(part).write_text(json.dumps(asdict(offered)))
            progress(have, offered.total)
            for block in _blocks(response):
                out.write(block)
                have += len(block)
                progress(have, offered.total)
    if offered.total is not None and have != offered.total:
        raise _Interrupted(f"the connection closed at {have} of {offered.total} bytes")
    return offered


def _continues(headers: Message, marks: Marks, offered: Marks, have: int) -> bool:
    """Whether a 206 answer goes on exactly where the part ends; some servers ignore If-Range, so compare again."""
    starts = headers.get("Content-Range", "").startswith(f"bytes {have}-")
    return starts and offered.validator in (None, marks.validator) and marks.total in (None, offered.total)


def _marks_of(response: HTTPResponse, url: str, declared: str | None) -> Marks:
    headers = response.headers
    encoding = headers.get("Content-Encoding", "identity")
    if encoding != "identity":
        raise PullError(f"{shown(url)}: the server sends the file {encoding}-encoded though asked not to")
    if response.status == 206:
        match = re.fullmatch(r"bytes \d+-\d+/(\d+)", headers.get("Content-Range", ""))
        total = int(match[1]) if match else None
    elif response.length is None and not response.chunked:
        raise PullError(f"{shown(url)}: the server does not say where the file ends, so a cut one would pass as whole")
    else:
        total = response.length
    etag = headers.get("ETag")
    strong = etag if etag and not etag.startswith("W/") else None  # If-Range takes no weak tag
    return Marks(_digest(url), strong or headers.get("Last-Modified"), total, declared)


def _kept(part: Path, url: str) -> tuple[Marks | None, int]:
    """Marks and bytes of an earlier try at the same URL; (None, 0) if there is nothing to resume."""
    try:
        marks, have = Marks(**json.loads(_marks_path(part).read_text())), part.stat().st_size
    except (FileNotFoundError, ValueError, TypeError):
        return None, 0
    return (marks, have) if have and marks.validator and marks.url == _digest(url) else (None, 0)


def _open(link: Link, headers: Mapping[str, str]) -> tuple[HTTPResponse, str | None]:
    """Follow redirects to the file; the token goes only to the link's own origin."""
    opener = http.OpenerDirector()  # no file:, ftp: or data:, and redirects stay in this function's hands
    for handler in (http.ProxyHandler, http.HTTPHandler, http.HTTPSHandler):
        opener.add_handler(handler())
    url, declared = link.url, None
    for _ in range(HOPS):
        request = http.Request(url, headers=dict(headers))
        if link.token and _origin(url) == _origin(link.url):
            request.add_header("Authorization", f"Bearer {link.token}")
        try:
            response: HTTPResponse = opener.open(request, timeout=TIMEOUT)
        except (OSError, HTTPException) as error:
            raise _Interrupted(f"no answer: {error}") from error
        except ValueError as error:  # the reason may quote the token
            raise PullError(f"{shown(url)}: the host name or the token has characters that can't be sent") from error
        declared = declared or _declared_sha256(response.headers)
        if response.status in (200, 206):
            return response, declared
        response.close()
        if response.status == 416 and "Range" in headers:
            headers = {key: value for key, value in headers.items() if key not in ("Range", "If-Range")}
        elif response.status in (301, 302, 303, 307, 308):
            url = _next_hop(url, response.headers.get("Location", ""))
        else:
            raise _refusal(response, url)
    raise PullError(f"{shown(link.url)}: more than {HOPS} redirects")


def _next_hop(url: str, location: str) -> str:
    target = urljoin(url, quote(location, safe="%/:=&?~#+!$,;'@()*[]"))
    allowed = ("https",) if url.startswith("https:") else ("http", "https")
    if urlsplit(target).scheme not in allowed:
        raise PullError(f"{shown(url)}: redirects to {shown(target)}, which is not {' or '.join(allowed)}")
    return target


def _refusal(response: HTTPResponse, url: str) -> Exception:
    answer = f"the server answered {response.status} {response.reason}"
    if response.status in TRANSIENT:
        return _Interrupted(answer)
    hint = " (a private or gated file needs HF_TOKEN)" if response.status in (401, 403) else ""
    return PullError(f"{shown(url)}: {answer}{hint}")


def _blocks(response: HTTPResponse) -> Iterator[bytes]:
    """The body as it arrives. A network failure is told apart here from one of this machine's disk."""
    try:
        while block := response.read1(BLOCK):
            yield block
    except (OSError, HTTPException) as error:
        raise _Interrupted(f"the connection was lost: {error}") from error


def _declared_sha256(headers: Message) -> str | None:
    """Model hubs name a large file's sha256 in `X-Linked-Etag`, on the answer that redirects to its storage."""
    tag = headers.get("X-Linked-Etag", "").strip('"')
    return tag if re.fullmatch(r"[0-9a-f]{64}", tag) else None


def _origin(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme, parts.netloc


def _digest(url: str) -> str:
    return hashlib.sha256(url.encode()).hexdigest()


def _marks_path(part: Path) -> Path:
    return part.with_name(part.name + ".json")
