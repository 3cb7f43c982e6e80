"""Models split over several GGUF files: any part opens all, and none may be missing or of another model."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFWriter

from phaseline.errors import FileFormatError, UnsupportedError
from phaseline.files.gguf import open_gguf
from phaseline.files.model_file import open_model_file
from support.models import logits, open_model
from support.tiny import write_llama


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    """The parts of a tiny model, in order."""
    write_llama(tmp_path / "tiny.gguf", part_tensors=8)
    return sorted(tmp_path.glob("tiny-*-of-*.gguf"))


def test_any_part_opens_the_whole_model(parts: list[Path], tmp_path: Path) -> None:
    whole = open_model_file(write_llama(tmp_path / "whole.gguf"))
    assert [part.name for part in parts] == [f"tiny-{i:05}-of-00003.gguf" for i in (1, 2, 3)]
    ids = list(range(40))
    want = logits(open_model(whole).reference(), ids)
    for part in parts:
        file = open_model_file(part)
        assert file.path == part and list(file.parts) == parts
        assert list(file.tensors.items()) == list(whole.tensors.items())
        for name in whole.tensors:
            assert file.raw(name).tobytes() == whole.raw(name).tobytes()
            assert np.array_equal(file.float32(name), whole.float32(name))
            file.release(name)
        assert np.array_equal(logits(open_model(file).reference(), ids), want)
        file.close()
        with pytest.raises(FileFormatError, match=r"'blk\.9\.attn_q' is missing"):
            file.raw("blk.9.attn_q")


def test_a_single_file_may_say_that_it_is_all(tmp_path: Path) -> None:
    path = write_llama(tmp_path / "whole.gguf", extra={"split.count": 1})
    assert open_model_file(path).path == path


def remove_second(parts: list[Path]) -> None:
    parts[1].unlink()


def remove_two(parts: list[Path]) -> None:
    parts[0].unlink()
    parts[1].unlink()


def swap(parts: list[Path]) -> None:
    shutil.copy(parts[2], parts[1])


def misname(parts: list[Path]) -> None:
    parts[2].rename(parts[2].with_name("third.gguf"))
    parts[2] = parts[2].with_name("third.gguf")


def count_more(parts: list[Path]) -> None:
    for i, part in enumerate(parts):
        parts[i] = part.rename(part.with_name(part.name.replace("of-00003", "of-00004")))
    shutil.copy(parts[2], parts[2].with_name("tiny-00004-of-00004.gguf"))


def count_zero(parts: list[Path]) -> None:
    parts[2] = parts[2].rename(parts[2].with_name("tiny-00003-of-00000.gguf"))


def of_another_model(parts: list[Path]) -> None:
    """A last part of as many tensors, under names that the first parts have too."""
    writer = GGUFWriter(parts[2], "llama")
    describe_part(writer, 2, 3, 21)
    writer.add_tensor("token_embd.weight", np.zeros((2, 2), np.float32))
    finish(writer)


def of_a_larger_model(parts: list[Path]) -> None:
    writer = GGUFWriter(parts[2], "llama")
    describe_part(writer, 2, 3, 99)
    finish(writer)


def of_another_architecture(parts: list[Path]) -> None:
    writer = GGUFWriter(parts[2], "gemma3")
    describe_part(writer, 2, 3, 21)
    finish(writer)


def with_too_few(parts: list[Path]) -> None:
    writer = GGUFWriter(parts[2], "llama")
    describe_part(writer, 2, 3, 21)
    finish(writer)


def truncated(parts: list[Path]) -> None:
    parts[1].write_bytes(parts[1].read_bytes()[:-100])


def describe_part(writer: GGUFWriter, number: int, count: int, tensors: int) -> None:
    writer.add_uint16("split.no", number)
    writer.add_uint16("split.count", count)
    writer.add_int32("split.tensors.count", tensors)


def finish(writer: GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (remove_second, "of its 3 parts tiny-00002-of-00003.gguf is missing"),
        (remove_two, "of its 3 parts tiny-00001-of-00003.gguf is missing and 1 others"),
        (swap, "tiny-00002-of-00003.gguf: it says to be part 3 of 3, not 2 of 3"),
        (misname, "third.gguf: it is one part of a model, so its name must end like -00001-of-00003.gguf"),
        (count_more, "tiny-00001-of-00004.gguf: it says to be part 1 of 3, not 1 of 4"),
        (count_zero, "its name must count from 1"),
        (of_another_model, "tensor 'token_embd.weight' is also in"),
        (of_a_larger_model, "tiny-00003-of-00003.gguf: its split.tensors.count is not that of"),
        (of_another_architecture, "tiny-00003-of-00003.gguf: its general.architecture is not that of"),
        (with_too_few, "its parts hold 16 tensors, split.tensors.count says 21"),
        (truncated, "tiny-00002-of-00003.gguf: tensor"),
    ],
)
def test_parts_that_do_not_belong_together(
    parts: list[Path], change: Callable[[list[Path]], None], message: str
) -> None:
    change(parts)
    with pytest.raises(FileFormatError, match=re.escape(message)):
        open_model_file(parts[2])


def test_one_part_alone_is_no_model(parts: list[Path]) -> None:
    with pytest.raises(UnsupportedError, match="one of 3 parts of a model"):
        open_gguf(parts[0])
