"""The safetensors reader: what a good file gives, and that a bad one is refused clearly and cheaply."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaseline.errors import FileFormatError, PhaselineError, UnsupportedError
from phaseline.files.safetensors import MAX_HEADER, SafetensorsFile
from support.folders import llama_tensors, write_image, write_safetensors


def entry(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def header(**tensors: Any) -> str:
    return json.dumps(tensors)


DATA = bytes(16)
BAD = (FileFormatError, UnsupportedError)
REFUSED: dict[str, tuple[Any, ...]] = {  # what the message must say -> header, data, length of the header
    "its header would have 3000 bytes": (header(), DATA, 3000),
    "its header would have 18446744073709551615 bytes": (header(), DATA, (1 << 64) - 1),
    "this is not a safetensors file: its header begins with b' {}'": (" {}",),
    "its header is not JSON": ("{",),
    "its header is nested deeper than 32": ('{"w":' + "[" * 50 + "]" * 50 + "}",),
    "the key 'w' appears twice": ('{"w": 1, "w": 2}',),
    "tensor 'w': its entry must hold": (header(w=entry() | {"more": 1}), bytes(8)),
    "tensor 'w': dtype 'F4' is not supported": (header(w=entry("F4")), bytes(8)),
    "tensor 'w': dtype ['F32'] is not supported": (header(w=entry(["F32"])), bytes(8)),
    "tensor 'w': shape [-2]": (header(w=entry(shape=[-2])), bytes(8)),
    "tensor 'w': shape [True]": (header(w=entry(shape=[True])), bytes(8)),
    "tensor 'w': shape 2 is not one": (header(w=entry(shape=2)), bytes(8)),
    "tensor 'w': shape [1, 1, 1, 1, 1, 1, 1, 1, 2]": (header(w=entry(shape=[1] * 8 + [2])), bytes(8)),
    "tensor 'w': data_offsets [8, 0]": (header(w=entry(offsets=[8, 0])), bytes(8)),
    "tensor 'w': data_offsets [0, 8, 8]": (header(w=entry(offsets=[0, 8, 8])), bytes(8)),
    "tensor 'w': F32 of shape [3] has 12 bytes, not [0, 8]": (header(w=entry(shape=[3])), bytes(8)),
    "has 85070591730234615865843651857942052864 bytes": (header(w=entry(shape=[1 << 62, 1 << 62])), bytes(8)),
    "'w': it would end at 77, past the file's end at 73": (header(w=entry()), bytes(4)),
    "'w': at offset 4 it leaves a gap; the one before ends at 0": (header(w=entry(offsets=[4, 12])), bytes(12)),
    "'w': at offset 4 it overlaps another": (header(v=entry(), w=entry(offsets=[4, 12])), bytes(12)),
    "'w': at offset 0 it overlaps another": (header(v=entry(), w=entry()), bytes(8)),
    "1 bytes at its end belong to no tensor": (header(w=entry()), bytes(9)),
}


@pytest.mark.parametrize("message", REFUSED)
def test_refusals_name_what_is_wrong(message: str, tmp_path: Path) -> None:
    path = write_image(tmp_path / "hostile.safetensors", *REFUSED[message])
    with pytest.raises(BAD, match=re.escape(message)):
        SafetensorsFile(path)


def test_files_that_are_hardly_there(tmp_path: Path) -> None:
    for content, message in ((b"", "empty"), (b"\1\0", "ends within"), (bytes(8), "header begins with b''")):
        (tmp_path / "short").write_bytes(content)
        with pytest.raises(FileFormatError, match=message):
            SafetensorsFile(tmp_path / "short")
    with pytest.raises(FileFormatError, match="cannot be read"):
        SafetensorsFile(tmp_path)


def test_a_header_over_the_limit_is_not_read(tmp_path: Path) -> None:
    path = write_image(tmp_path / "large", "{}", length=MAX_HEADER + 1)
    with path.open("ab") as file:
        file.truncate(1 << 33)
    with pytest.raises(FileFormatError, match=f"would have {MAX_HEADER + 1} bytes"):
        SafetensorsFile(path)


def test_hostile_headers_cost_little_memory(tmp_path: Path) -> None:
    """The longest header that is read, full of what parses to the most."""
    room = MAX_HEADER - 100
    shapes = ["[" + "[]," * (room // 3) + "[]]", "[" + "1.5," * (room // 4) + "1]", "[" * room, '"' + "a" * room + '"']
    paths = [write_image(tmp_path / str(i), '{"w": ' + shape + "}") for i, shape in enumerate(shapes)]
    code = (
        "import sys\nfrom pathlib import Path\nfrom phaseline.errors import PhaselineError\n"
        "from phaseline.files.safetensors import SafetensorsFile\n"
        "for path in sys.argv[1:]:\n    try:\n        SafetensorsFile(Path(path))\n    except PhaselineError:\n"
        "        continue\n    raise SystemExit(1)\n"
        "print(next(x.split()[1] for x in Path('/proc/self/status').read_text().splitlines() if x.startswith('VmHWM')))"
    )
    done = subprocess.run([sys.executable, "-c", code, *paths], capture_output=True, text=True, check=True, timeout=60)
    assert int(done.stdout) < 250_000  # kB


def test_tensors_are_those_of_the_library(tmp_path: Path) -> None:
    numpy = pytest.importorskip("safetensors.numpy")
    rng = np.random.default_rng(0)
    tensors = {
        "a": rng.normal(size=(3, 5)).astype(np.float32),
        "b.c": rng.normal(size=(7,)).astype(np.float16),
        "scalar": np.array(4.5, np.float32),
        "empty": np.zeros((0, 4), np.float32),
        "ids": rng.integers(0, 9, (2, 2, 3)),
    }
    numpy.save_file(tensors, tmp_path / "theirs", {"format": "pt"})
    ours = SafetensorsFile(tmp_path / "theirs")
    assert ours.tensors.keys() == tensors.keys()
    for name, values in tensors.items():
        assert ours.tensors[name].shape == values.shape
        assert ours.array(name).tobytes() == values.tobytes()
    write_safetensors(tmp_path / "mine", {name: tensors[name] for name in ("a", "b.c")})
    for name, values in numpy.load_file(tmp_path / "mine").items():
        assert np.array_equal(values, tensors[name])


def test_bytes_are_read_only_and_outlive_close(tmp_path: Path) -> None:
    file = SafetensorsFile(write_safetensors(tmp_path / "a", {"w": np.arange(6, dtype="<f4")}))
    raw = file.array("w")
    file.release("w")
    file.close()
    assert not raw.flags.writeable and np.array_equal(raw.view("<f4"), np.arange(6))


def test_truncation_anywhere_is_refused(tmp_path: Path) -> None:
    content = write_safetensors(tmp_path / "a", {"w": np.arange(3, dtype="<f4")}).read_bytes()
    for length in range(len(content)):
        (tmp_path / "a").write_bytes(content[:length])
        with pytest.raises(FileFormatError):
            SafetensorsFile(tmp_path / "a")


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mutations") / "scratch"


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_changed_bytes_give_a_file_or_a_clear_error(scratch: Path, data: st.DataObject) -> None:
    content = bytearray(write_safetensors(scratch, dict(list(llama_tensors().items())[:4])).read_bytes())
    end = 8 + int.from_bytes(content[:8], "little")
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, end - 1))
        content[at] = data.draw(st.sampled_from(b'0123456789[]{},:"-e') if at >= 8 else st.integers(0, 255))
    scratch.write_bytes(content)
    try:
        file = SafetensorsFile(scratch)
        for name, stored in file.tensors.items():
            assert file.array(name).nbytes == stored.nbytes <= len(content)
    except PhaselineError as error:
        assert type(error) in BAD
