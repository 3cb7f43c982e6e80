"""From a body's bytes to its struct: JSON that is JSON, and no more of it at a time than is soon read.

While JSON is decoded nothing else runs in this process, in whatever thread it is done. So prompts and lists of tokens
are decoded by parts, between which others run. What there is in a part, and in all else, is counted first, without
holding anybody up, and what would take longer than some 10 ms is refused. Plain text costs next to nothing: what is
counted is above all what text is in.
"""

import codecs
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeVar

import msgspec

from phaseline._native import long_json_members, measure_json
from phaseline.serve.door.problems import Problem, refused
from phaseline.serve.door.protocol import Tokens

_T = TypeVar("_T")
_Member = tuple[str, list[int], int]  # its name, where it may be cut, its elements
SMALL = 1 << 17  # bytes of which any are decoded in 5 ms
_SLICE = 1 << 19  # bytes whose characters are looked at without a pause
# What decoding costs, in units of some 20 ns, and the most that it may: 10 ms, and 80 ns for each token id of a prompt,
# which may stand on a line of its own.
_UNITS = {
    "openings": 8.0,  # lists and objects
    "strings": 4.0,
    "escapes": 0.2,
    "values": 2.0,
    "long_values": 10.0,
    "blanks": 0.1,
    "beyond_ascii": 0.1,
}
_MOST, _AN_ID = 500_000, 4.0
_LONGEST_VALUE = 128  # characters of a number, which takes the square of that
_LONGEST_STRING, _A_TOKEN = 1 << 22, 32  # bytes of any, and for each token that fits the context: seldom more than 5
# What may be long and is decoded by parts, and how many elements it may have, if the context does not hold more.
_BY_PARTS: Mapping[str, msgspec.json.Decoder[Any]] = {
    "prompt": msgspec.json.Decoder(list[str | int | Tokens]),
    "tokens": msgspec.json.Decoder(Tokens),
    "stop_token_ids": msgspec.json.Decoder(Tokens),
    "logit_bias": msgspec.json.Decoder(dict[str, float]),
}
_MOST_ELEMENTS = 1 << 17


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
    work, most = sum(units * getattr(size, name) for name, units in _UNITS.items()), _MOST + _AN_ID * context
    if work > most:
        held = f"{size.openings} lists and objects, {size.strings} strings, {size.values} other values"
        message = f"too much to read at once: {held}; {work:.0f} units of work, where {most:.0f} are done"
        raise Problem(400, message, code="body_too_complex")


def decode(decoder: msgspec.json.Decoder[_T], body: bytes | bytearray, context: int) -> _T:
    """The body as its struct; 400 says what is wrong and where. No NaN, no infinity, no half a character is JSON.

    Prompts and lists of tokens may be as long as a body can be.
    """
    kind: Any = decoder.type
    long = _long_members(body, kind.__struct_fields__, context) if len(body) > SMALL else []
    try:
        _check_utf8(body)
        found = _decoded(decoder, _without(body, long), context)
        for name, cuts, _ in reversed(long):
            if not getattr(found, name):  # else the name stands twice, and the last one counts
                setattr(found, name, _joined(_BY_PARTS[name], body, name, cuts, context))
    except msgspec.DecodeError as error:
        said = str(error).partition(" (byte")[0] if long else error  # which tells a place in a part
        raise Problem(400, f"the body is not JSON: {said}", code="invalid_json") from None
    except RecursionError:
        raise Problem(400, "the body is nested too deeply", code="invalid_json") from None
    return found


def _long_members(body: bytes | bytearray, fields: Sequence[str], context: int) -> list[_Member]:
    """Those that are decoded by parts."""
    members = [
        (name.decode(errors="replace"), cuts, elements) for name, cuts, elements in long_json_members(body, SMALL)
    ]
    long = [member for member in members if member[0] in _BY_PARTS and member[0] in fields]
    for name, _, elements in long:
        if elements > max(_MOST_ELEMENTS, context):
            message = f"{name}: too much to read: {elements} elements, where {max(_MOST_ELEMENTS, context)} are read"
            raise Problem(400, message, param=name, code="body_too_complex")
    return long


def _without(body: bytes | bytearray, long: Sequence[_Member]) -> bytes | bytearray:
    """The body, but what is long is empty."""
    if not long:
        return body
    ends = [0, *(end for _, cuts, _ in long for end in (cuts[0] + 1, cuts[-1])), len(body)]
    return b"".join(body[start:end] for start, end in zip(ends[::2], ends[1::2], strict=True))


def _joined(
    decoder: msgspec.json.Decoder[Any], body: bytes | bytearray, name: str, cuts: list[int], context: int
) -> Any:
    """A list or object that is decoded by parts."""
    opening, closing = body[cuts[0] : cuts[0] + 1], body[cuts[-1] : cuts[-1] + 1]
    whole: Any = None
    for start, end in pairwise(cuts):
        part = _decoded(decoder, opening + body[start + 1 : end] + closing, context, name, len(whole or ()))
        if not part:
            raise msgspec.DecodeError(f"{name} has an element that is nothing")
        if whole is None:
            whole = part
        elif isinstance(whole, dict):
            whole.update(part)
        else:
            whole.extend(part)
    return whole


def _decoded(
    decoder: msgspec.json.Decoder[_T], text: bytes | bytearray, context: int, name: str = "", before: int = 0
) -> _T:
    """Some JSON, which is a body's, or of what it calls `name` the part that so many elements stand before."""
    check_size(text, context)
    try:
        return decoder.decode(text)
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(" - at `$")
        missing = message.split("`")[1] if "required field" in message else "body"
        place = re.sub(r"^\[(\d+)\]", lambda found: f"[{int(found[1]) + before}]", place.rstrip("`"))
        raise refused(f"{name}{place}".removeprefix(".") or missing, message) from None


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
