"""The GGUF reader: what a good file gives, and that a bad one is refused clearly, cheaply and in no other way."""

import mmap
import os
import re
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFValueType, GGUFWriter
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from phaseline.errors import FileFormatError, PhaselineError, UnsupportedError
from phaseline.files.gguf import StringArray, get, open_gguf
from phaseline.files.quant import FORMATS
from support.tiny import encode, write_llama

# --- files written by hand, byte by byte ---

UINT8, UINT16, UINT32, BOOL, STRING, ARRAY, FLOAT64 = 0, 2, 4, 7, 8, 9, 12
HUGE = 1 << 63


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def pair(key: str | bytes, kind: int, payload: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + payload


def items(kind: int, count: int, payload: bytes = b"") -> bytes:
    return pair("list", ARRAY, struct.pack("<IQ", kind, count) + payload)


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def tensor(name: str | bytes, dims: Sequence[int], kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def image(
    *pairs: bytes,
    tensors: Sequence[bytes] = (),
    data: bytes = b"",
    version: bytes = u32(3),
    keys: int | None = None,
    count: int | None = None,
) -> bytes:
    counts = struct.pack("<QQ", len(tensors) if count is None else count, len(pairs) if keys is None else keys)
    head = b"GGUF" + version + counts + b"".join(pairs) + b"".join(tensors)
    return head + bytes(-len(head) % 32) + data if data else head


def finish(writer: GGUFWriter, tensors: Mapping[str, NDArray[Any]]) -> None:
    for name, values in tensors.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


WEIGHTS = bytes(64)

MALFORMED: dict[str, bytes] = {  # what the message must say -> the file
    "the file is empty": b"",
    r"not a GGUF file: it begins with b'PK": b"PK\3\4" + bytes(64),
    "the version needs 4 bytes": b"GGUF\3\0",
    "number of tensors is 9223372036854775808": image(count=HUGE),
    "number of metadata keys is 9223372036854775808": image(keys=HUGE),
    "length of metadata key 0 needs 8 bytes and would run past the file's end at 24": image(keys=9),
    "length of metadata key 0 is 9223372036854775808": image(struct.pack("<Q", HUGE)),
    "metadata key 0 is not UTF-8": image(pair(b"\xff", UINT8, b"\0")),
    "length of metadata key 'a' is 9223372036854775808": image(pair("a", STRING, struct.pack("<Q", HUGE))),
    "metadata key 'a' is not UTF-8": image(pair("a", STRING, text(b"\xc3"))),
    "'a' has the unknown value type 13": image(pair("a", 13, bytes(8))),
    "'list' has the unknown value type 77": image(items(77, 1)),
    "'list' needs 9223372036854775808 bytes": image(items(UINT8, HUGE)),
    "'list' needs 18446744073709551616 bytes": image(items(FLOAT64, 1 << 61)),
    "'list' needs 73786976294838206464 bytes": image(items(STRING, HUGE)),
    "string 1 of metadata key 'list' would run past": image(items(STRING, 2, struct.pack("<Q", HUGE) + bytes(16))),
    "'list' needs 107 bytes": image(items(STRING, 1, struct.pack("<Q", 99))),
    "'a' holds a boolean that is neither 0 nor 1": image(pair("a", BOOL, b"\2")),
    "'list' holds a boolean": image(items(BOOL, 3, b"\0\7\1")),
    "'a' appears twice": image(pair("a", UINT8, b"\0"), pair("a", UINT8, b"\0")),
    "general.alignment is 0": image(pair("general.alignment", UINT32, u32(0))),
    "general.alignment is 48": image(pair("general.alignment", UINT32, u32(48))),
    "'general.alignment' is of type str": image(pair("general.alignment", STRING, text("32"))),
    "length of name of tensor 0 needs 8 bytes": image(count=2),
    "name of tensor 0 is not UTF-8": image(tensors=[tensor(b"\xfe", [4])], data=WEIGHTS),
    "'w' has 0 dimensions": image(tensors=[tensor("w", [])], data=WEIGHTS),
    "'w' has 5 dimensions": image(tensors=[tensor("w", [1] * 5)], data=WEIGHTS),
    "'w' has a dimension of 0": image(tensors=[tensor("w", [4, 0])], data=WEIGHTS),
    "'w' at offset 0 needs 17592186044416 bytes": image(tensors=[tensor("w", [1 << 42])], data=WEIGHTS),
    "'w' at offset 0 needs 147573952589676412928 bytes": image(tensors=[tensor("w", [HUGE, 2, 2])], data=WEIGHTS),
    "'w': a row of 33 elements": image(tensors=[tensor("w", [33, 2], 2)], data=WEIGHTS),
    "'w' at offset 16 is not aligned to 32": image(tensors=[tensor("w", [4], 0, 16)], data=WEIGHTS),
    "'w' at offset 9223372036854775808 needs 16 bytes": image(tensors=[tensor("w", [4], 0, HUGE)], data=WEIGHTS),
    "'w' at offset 0 needs 16 bytes": image(tensors=[tensor("w", [4])], data=bytes(15)),
    "'w' at offset 32 overlaps": image(tensors=[tensor("v", [9]), tensor("w", [4], 0, 32)], data=WEIGHTS),
    "'w' at offset 32: a tensor of this name": image(tensors=[tensor("w", [4]), tensor("w", [4], 0, 32)], data=WEIGHTS),
}

UNSUPPORTED: dict[str, bytes] = {
    "version 1 is not supported; versions 2 and 3 are": image(version=u32(1)),
    "version 4 is not supported": image(version=u32(4)),
    "big-endian": image(version=struct.pack(">I", 3)),
    "'list' is an array of arrays": image(items(ARRAY, 1)),
    "one of 2 parts of a model": image(pair("split.count", UINT16, b"\2\0")),
    "'w': tensor type I32 (type 26)": image(tensors=[tensor("w", [4], 26)], data=WEIGHTS),
    "'w': tensor type unknown (type 777)": image(tensors=[tensor("w", [4], 777)], data=WEIGHTS),
}


@pytest.mark.parametrize("message", [*MALFORMED, *UNSUPPORTED])
def test_refusals_name_what_is_wrong(message: str, tmp_path: Path) -> None:
    path = tmp_path / "hostile.gguf"
    path.write_bytes((MALFORMED | UNSUPPORTED)[message])
    with pytest.raises(FileFormatError if message in MALFORMED else UnsupportedError, match=re.escape(message)):
        open_gguf(path)


def test_hand_written_files_open_when_nothing_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "good.gguf"
    pairs = pair("a", STRING, text("é")), items(STRING, 2, text("") + text("xy")), pair("split.count", UINT16, b"\1\0")
    tensors = tensor("w", [4, 1, 1, 1], 0, 32), tensor("v", [8])
    for version in (2, 3):
        path.write_bytes(image(*pairs, tensors=tensors, data=WEIGHTS[:48], version=u32(version)))
        with open_gguf(path) as file:
            assert file.metadata["a"] == "é" and list(file.metadata["list"]) == ["", "xy"]
            assert file.tensors["w"].shape == (1, 1, 1, 4) and file.raw("w").shape == (1, 16)


def test_alignment_is_the_files_own(tmp_path: Path) -> None:
    path = tmp_path / "aligned.gguf"
    values = np.arange(6, dtype=np.float32)
    for alignment in (8, 64, 4096):
        writer = GGUFWriter(path, "llama")
        writer.add_custom_alignment(alignment)
        finish(writer, {"a": values[:1], "b": values[1:].reshape(1, 5)})
        with open_gguf(path) as file:
            assert np.array_equal(file.float32("a"), values[:1]) and np.array_equal(file.float32("b")[0], values[1:])


@pytest.mark.parametrize("name", ["missing.gguf", "."])
def test_unreadable_paths(name: str, tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="cannot be read"):
        open_gguf(tmp_path / name)


def write_sample(path: Path) -> Path:
    """Every metadata type and several tensor formats in a few kilobytes."""
    rng = np.random.default_rng(3)
    writer = GGUFWriter(path, "llama")
    for number, kind in enumerate((k for k in GGUFValueType if k.name[:3] in ("UIN", "INT", "FLO")), start=1):
        writer.add_key_value(f"test.{kind.name.lower()}", number, kind)
    writer.add_bool("test.bool", True)
    writer.add_string("test.text", "naïve ☃")
    writer.add_array("test.strings", ["", "a", "☃" * 50, "end"])
    writer.add_array("test.ints", [-1, 2, 300000])
    writer.add_array("test.floats", [0.5, -2.0])
    writer.add_array("test.flags", [True, False])
    for name in ("Q8_0", "Q4_1", "BF16"):
        encoded = encode(rng, name, rows=3, cols=64, std=1.0)
        writer.add_tensor(f"w.{name}", encoded, raw_dtype=GGMLQuantizationType[name])
    cube = rng.normal(size=(2, 3, 4))
    finish(
        writer, {"cube": cube.astype(np.float32), "half": cube.astype(np.float16), "last": np.full(1, 7.0, np.float32)}
    )
    return path


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sample(tmp_path_factory.mktemp("gguf") / "sample.gguf")


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gguf") / "mutated.gguf"


def test_metadata_keeps_types_and_values(sample: Path) -> None:
    with open_gguf(sample) as file:
        meta = file.metadata
    numbers = [meta[f"test.{kind}"] for kind in ("uint8", "int8", "uint16", "int16", "uint32", "int32")]
    assert numbers == [1, 2, 3, 4, 5, 6] and all(type(n) is int for n in numbers)
    assert type(meta["test.float32"]) is float and meta["test.uint64"] == 8 and type(meta["test.float64"]) is float
    assert meta["test.bool"] is True and meta["test.text"] == "naïve ☃"
    assert list(meta["test.ints"]) == [-1, 2, 300000] and list(meta["test.floats"]) == [0.5, -2.0]
    assert list(meta["test.flags"]) == [True, False]
    with pytest.raises(TypeError):
        meta["new"] = 1  # type: ignore[index]


def test_string_arrays_are_sequences_that_outlive_the_file(sample: Path) -> None:
    with open_gguf(sample) as file:
        strings: StringArray = file.metadata["test.strings"]
    expected = ["", "a", "☃" * 50, "end"]
    assert list(strings) == expected and len(strings) == 4 and strings[-1] == "end" and strings[1:3] == expected[1:3]
    assert "a" in strings and strings.index("end") == 3
    with pytest.raises(IndexError):
        strings[4]


def test_string_arrays_refuse_bad_utf8_when_read(tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(image(items(STRING, 2, text("fine") + text(b"\xe2\x82"))))
    with open_gguf(path) as file, pytest.raises(FileFormatError, match="string 1 of metadata key 'list' is not UTF-8"):
        list(file.metadata["list"])


def test_tensors_equal_those_of_the_gguf_package(sample: Path) -> None:
    theirs = {t.name: t for t in gguf.GGUFReader(sample).tensors}
    with open_gguf(sample) as file:
        assert list(file.tensors) == list(theirs)
        for name, info in file.tensors.items():
            assert info.format.name == theirs[name].tensor_type.name and info.nbytes == theirs[name].n_bytes
            assert info.shape == tuple(reversed(theirs[name].shape.tolist()))
            expected = gguf.quants.dequantize(theirs[name].data, theirs[name].tensor_type)
            assert np.array_equal(file.float32(name), expected.reshape(info.shape))
            assert file.raw(name).tobytes() == theirs[name].data.tobytes()


def test_raw_bytes_are_read_only_and_outlive_close(sample: Path) -> None:
    file = open_gguf(sample)
    raw = file.raw("w.Q8_0")
    assert raw.shape == (3, 68) and not raw.flags.writeable
    before = raw.copy()
    file.close()
    assert np.array_equal(raw, before)
    del raw
    file.close()
    with pytest.raises(ValueError, match="closed"):
        file.raw("w.Q8_0")


def test_a_missing_tensor_is_named(sample: Path) -> None:
    with open_gguf(sample) as file:
        for access in (file.raw, file.float32, file.release):
            with pytest.raises(FileFormatError, match=r"'blk\.9\.attn_q' is missing"):
                access("blk.9.attn_q")


def resident(path: Path) -> int:
    """Resident bytes of this process's mapping of a file."""
    lines = Path("/proc/self/smaps").read_text().splitlines()
    at = next(i for i, line in enumerate(lines) if line.endswith(str(path)))
    return next(int(line.split()[1]) * 1024 for line in lines[at:] if line.startswith("Rss:"))


def test_release_drops_the_tensors_pages_only(tmp_path: Path) -> None:
    path = tmp_path / "large.gguf"
    size = 4 << 20
    tensors = [tensor("a", [size // 4], 0, 0), tensor("b", [size // 4], 0, size), tensor("c", [2], 0, 2 * size)]
    path.write_bytes(image(tensors=tensors, data=bytes(range(256)) * (2 * size // 256) + b"12345678"))
    with open_gguf(path) as file:
        sums = [int(file.raw(name).sum()) for name in ("a", "b", "c")]
        full = resident(path)
        file.release("b")  # begins and ends inside pages that it shares; a huge page may take its first one along
        left = resident(path)
        assert abs(full - left - size) <= mmap.PAGESIZE
        file.release("c")  # smaller than a page
        assert resident(path) == left
        assert [int(file.raw(name).sum()) for name in ("a", "b", "c")] == sums


def test_get_checks_presence_and_type() -> None:
    meta: dict[str, Any] = {"n": 4, "x": 0.5, "s": "a", "flag": True, "list": memoryview(b"\1\2")}
    assert get(meta, "n", int) == 4 and get(meta, "x", float) == 0.5 and get(meta, "flag", bool) is True
    assert get(meta, "absent", int, 7) == 7 and list(get(meta, "list", Sequence)) == [1, 2]  # type: ignore[type-abstract]
    as_float = get(meta, "n", float)
    assert as_float == 4.0 and type(as_float) is float
    for key, kind in (("s", int), ("x", int), ("flag", int), ("flag", float), ("n", bool), ("n", str)):
        with pytest.raises(FileFormatError, match=f"'{key}' is of type .*{kind.__name__} is needed"):
            get(meta, key, kind)
    with pytest.raises(FileFormatError, match=r"'llama\.block_count' is missing"):
        get(meta, "llama.block_count", int)


# --- mutations ---


def read_everything(path: Path) -> None:
    with open_gguf(path) as file:
        for value in file.metadata.values():
            if isinstance(value, Sequence):
                list(value)
        for name, info in file.tensors.items():
            assert file.raw(name).nbytes == info.nbytes <= path.stat().st_size
            assert file.float32(name).shape == info.shape


def test_truncation_anywhere_is_refused(sample: Path, scratch: Path) -> None:
    content = sample.read_bytes()
    with open_gguf(sample) as file:
        end = content.rindex(file.raw("last").tobytes()) + file.tensors["last"].nbytes
    scratch.write_bytes(content[:end])
    read_everything(scratch)
    for length in reversed(range(end)):
        os.truncate(scratch, length)
        with pytest.raises(FileFormatError):
            open_gguf(scratch)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_changed_bytes_give_a_file_or_a_clear_error(sample: Path, scratch: Path, data: st.DataObject) -> None:
    content = bytearray(sample.read_bytes())
    extreme = st.sampled_from([0, 1, 1 << 42, HUGE, (1 << 64) - 1])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 8))
        if data.draw(st.booleans()):
            content[at : at + 8] = struct.pack("<Q", data.draw(extreme))
        else:
            content[at] = data.draw(st.integers(0, 255))
    scratch.write_bytes(content)
    try:
        read_everything(scratch)
    except PhaselineError as error:
        assert type(error) in (FileFormatError, UnsupportedError)


PEAK = """
import sys
from pathlib import Path
from phaseline.errors import PhaselineError
from phaseline.files.gguf import open_gguf
for path in sys.argv[1:]:
    try:
        open_gguf(path)
    except PhaselineError:
        pass
print(next(line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")))
"""


def test_hostile_headers_cost_little_memory(tmp_path: Path) -> None:
    """Counts that a large sparse file does back: the reader's own bounds must hold. The whole process stays small."""
    many = 1 << 16
    tensors = [tensor(f"t{i}", [8], 0, 32 * i) for i in range(many)]
    hostile = {
        "strings": image(items(STRING, 6_000_000)),
        "more strings": image(items(STRING, 1 << 30)),
        "bytes": image(items(UINT8, 1 << 33)),
        "text": image(pair("a", STRING, struct.pack("<Q", 1 << 33))),
        "tensors": image(tensors=tensors),
        "keys": image(*(pair(f"k{i}", UINT8, b"\0") for i in range(many))),
    }
    paths = [tmp_path / f"{name}.gguf" for name in hostile]
    for path, content in zip(paths, hostile.values(), strict=True):
        with path.open("wb") as file:
            file.write(content)
            file.truncate(1 << 34)
    done = subprocess.run([sys.executable, "-c", PEAK, *paths], capture_output=True, text=True, check=True, timeout=60)
    assert int(done.stdout) < 200_000  # kB


# --- whole models ---


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_tiny_models_of_every_format(name: str, tmp_path: Path) -> None:
    path = write_llama(tmp_path / "tiny.gguf", format=name, formats={"attn_k": "F16"}, width=256, ff=256, layers=1)
    with open_gguf(path) as file:
        assert file.tensors["blk.0.attn_q.weight"].format.name == name
        assert file.tensors["blk.0.attn_k.weight"].format.name == "F16"
        assert file.tensors["blk.0.attn_norm.weight"].format.name == "F32"
        for tensor_name, std in (("token_embd.weight", 1.0), ("blk.0.ffn_up.weight", 1 / 16)):
            assert file.float32(tensor_name).std() == pytest.approx(std, rel=0.1)


def test_real_model(smollm2_path: Path) -> None:
    with open_gguf(smollm2_path) as file:
        assert get(file.metadata, "general.architecture", str) == "llama" and len(file.tensors) == 272
        assert len(file.metadata["tokenizer.ggml.tokens"]) == 49152
        assert len(list(file.metadata["tokenizer.ggml.merges"])) == 48900
        assert {info.format.name for info in file.tensors.values()} == {"F32", "Q4_1", "Q8_0"}
        assert file.tensors["blk.0.ffn_down.weight"].shape == (576, 1536)
        assert 0.05 < file.float32("blk.29.attn_q.weight").std() < 0.5
