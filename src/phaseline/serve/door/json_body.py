"""From a body's bytes to its struct: JSON that is JSON, and no more of it than is soon read.

While a body is decoded nothing else runs in this process, in whatever thread it is done. So what there is to decode is
counted first, without holding anybody up, and what would take longer than some 10 ms is refused. Plain text costs next
to nothing: what is counted is above all what text is in.
"""

import codecs
from collections.abc import Mapping
from typing import TypeVar

import msgspec

from phaseline._native import measure_json
from phaseline.serve.door.problems import Problem, refused

_T = TypeVar("_T")
SMALL = 1 << 17  # bytes of which any are decoded in 5 ms
_SLICE = 1 << 19  # bytes whose characters are looked at without a pause
# What decoding costs, in units of some 20 ns, and the most that it may: 10 ms, and 40 ns for each token id of a prompt.
_UNITS = {
    "openings": 8.0,  # lists and objects
    "strings": 4.0,
    "escapes": 0.2,
    "values": 2.0,
    "long_values": 10.0,
    "blanks": 0.1,
    "beyond_ascii": 0.1,
}
_MOST = 500_000
_LONGEST_VALUE = 128  # characters of a number, which takes the square of that
_LONGEST_STRING, _A_TOKEN = 1 << 22, 32  # bytes of any, and for each token that fits the context: seldom more than 5


def check_json(headers: Mapping[str, str]) -> None:
    """415 unless the body says that it is JSON: what a web page may send anywhere unasked is not taken."""
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        said = f"not {kind[:60]!r}" if kind else "and there is none"
        raise Problem(415, f"the header Content-Type must be application/json, {said}", code="unsupported_media_type")


def check_size(text: bytes | bytearray, context: int) -> None:
    """400 if some JSON would take too long to decode, though it held the ids of a whole context."""
    if len(text) <= SMALL:
        return
    size = measure_json(text)
    longest = max(_LONGEST_STRING, _A_TOKEN * context)
    if size.longest_string > longest:
        message = f"a text of {size.longest_string} bytes: for a context of {context} tokens {longest} are read at most"
        raise Problem(400, message, code="context_length_exceeded")
    if size.longest_value > _LONGEST_VALUE:
        message = f"a number of {size.longest_value} characters: at most {_LONGEST_VALUE} are read"
        raise Problem(400, message, code="body_too_complex")
    work, most = sum(units * getattr(size, name) for name, units in _UNITS.items()), _MOST + _UNITS["values"] * context
    if work > most:
        held = f"{size.openings} lists and objects, {size.strings} strings, {size.values} other values"
        message = f"too much to read at once: {held}; {work:.0f} units of work, where {most:.0f} are done"
        raise Problem(400, message, code="body_too_complex")


def decode(decoder: msgspec.json.Decoder[_T], body: bytes | bytearray, context: int) -> _T:
    """The body as its struct; 400 says what is wrong and where. No NaN, no infinity, no half a character is JSON.

    A body may hold as many token ids as the `context` has positions, and others besides.
    """
    check_size(body, context)
    try:
        _check_utf8(body)
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(" - at `")
        missing = message.split("`")[1] if "required field" in message else "body"
        raise refused(place.rstrip("`").removeprefix("$.") or missing, message) from None
    except msgspec.DecodeError as error:
        raise Problem(400, f"the body is not JSON: {error}", code="invalid_json") from None
    except RecursionError:
        raise Problem(400, "the body is nested too deeply", code="invalid_json") from None


def _check_utf8(body: bytes | bytearray) -> None:
    """msgspec does not look into what it skips."""
    decoder, start = codecs.getincrementaldecoder("utf-8")(), 0
    for end in range(_SLICE, len(body) + _SLICE, _SLICE):
        rest = len(decoder.getstate()[0])  # of a character that the last slice has begun
        try:
            decoder.decode(body[start:end], final=end >= len(body))
        except UnicodeDecodeError as error:
            at = start - rest + error.start
            raise Problem(400, f"the body is not UTF-8 at byte {at}", code="invalid_json") from None
        start = end
