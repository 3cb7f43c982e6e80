"""Builds of Phaseline as contenders: git revisions, each built into a folder of its own, and the one that runs now."""

import asyncio
import hashlib
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phaseline.errors import PhaselineError, RequestError
from phaseline.lab.contenders import Reading, read_trace
from phaseline.lab.prompts import Vocabulary
from phaseline.lab.systems.base import Ask
from phaseline.lab.trace import Event, Trace

_STOP_S = 10.0  # a worker has so long to end


@dataclass(frozen=True, slots=True)
class Build:
    """How a worker on a build is started. `home`: where its package must lie, so that no other is measured for it."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    home: Path


def this_build(worker: Path) -> Build:
    """The package that runs now, as it is installed. `worker`: the script that serves."""
    home = Path(__file__).resolve().parents[1]
    return Build("this", [sys.executable, "-P", str(worker)], dict(os.environ), home)


def revision_build(revision: str, worker: Path, repository: Path = Path()) -> Build:
    """A git revision, built with pip into the user's cache, once for each commit and interpreter.

    Its dependencies are those of the interpreter that runs now; the package itself is taken from the cache alone.
    Raises RequestError for an unknown revision, PhaselineError if it cannot be built.
    """
    commit = resolve_revision(revision, repository)
    interpreter = hashlib.sha256(f"{sys.version} {sys.prefix}".encode()).hexdigest()[:8]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "phaseline" / "builds"
    home = cache / f"{commit}-{interpreter}"
    if not home.is_dir():
        _build(commit, repository, home)
    # Without `site`, no editable install can put another copy of the package first.
    packages = [str(home), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(packages))}
    name = commit[:10] if commit.startswith(revision) else f"{revision} ({commit[:10]})"
    return Build(name, [sys.executable, "-S", "-P", str(worker)], environment, home)


def resolve_revision(revision: str, repository: Path = Path()) -> str:
    """The commit that a revision names. Raises RequestError if there is none."""
    command = [
        "git",
        "-C",
        str(repository),
        "rev-parse",
        "--verify",
        "--quiet",
        "--end-of-options",
        f"{revision}^{{commit}}",
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        raise RequestError(f"revision {revision!r}: git cannot be run: {error.strerror}") from error
    if done.returncode:
        raise RequestError(f"revision {revision!r} is unknown to git in {repository.resolve()}")
    return done.stdout.strip()


def _build(commit: str, repository: Path, home: Path) -> None:
    home.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home.parent) as scratch:
        source, site, archive = (Path(scratch) / name for name in ("source", "site", "archive.tar"))
        source.mkdir()
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        for command in (
            ["git", "-C", str(repository), "archive", "--output", str(archive), commit],
            ["tar", "-xf", str(archive), "-C", str(source)],
            [*install, "--target", str(site), str(source)],
        ):
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            if done.returncode:
                last = done.stdout.strip().splitlines()[-1:]
                raise PhaselineError(f"revision {commit[:10]} cannot be built ({command[0]}): {' '.join(last)}")
        site.rename(home)


class WorkerContender:
    """A build that serves a model in a process of its own, a new one for each start."""

    prompted = True

    def __init__(
        self,
        build: Build,
        model: str,
        vocabulary: Vocabulary,
        options: Mapping[str, Any] | None = None,
        slow: Mapping[str, float] | None = None,
    ) -> None:
        self.name, self.vocabulary = build.name, vocabulary
        self._build = build
        self._wanted = {"model": model, "options": dict(options or {}), "slow": dict(slow or {})}
        self._process: asyncio.subprocess.Process | None = None
        self._complaints: asyncio.Task[bytes] | None = None
        self._said: Mapping[str, Any] = {}

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            *self._build.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self._build.environment,
            start_new_session=True,  # Ctrl-C is for the guard, which stops it
            limit=1 << 26,
        )
        assert self._process.stderr
        self._complaints = asyncio.create_task(self._process.stderr.read())
        try:
            self._said = await self._ask(self._wanted)
            if self._build.home.resolve() not in Path(self._said["file"]).resolve().parents:
                raise PhaselineError(f"{self.name}: not its own build was loaded, but {self._said['file']}")
        except BaseException:
            await self.stop()
            raise

    async def serve(self, ask: Ask) -> Reading:
        prompt = ask.prompt if isinstance(ask.prompt, str) else list(ask.prompt)
        said = await self._ask({"prompt": prompt, "max_tokens": ask.max_tokens})
        times = [said["sent_ns"] + round(seconds * 1e9) for seconds in said["times_s"]]
        trace = Trace(
            sent_ns=said["sent_ns"],
            end_ns=max([said["end_ns"], *times[-1:]]),
            events=tuple(Event(t, "text", 1) for t in times),
            prompt_tokens=said["prompt_tokens"],
            cached_tokens=said["cached_tokens"],
            output_tokens=len(times),
        )
        return read_trace(self.name, trace, ask, tuple(said["token_ids"]))

    async def stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.stdin:
            process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), _STOP_S)
        except BaseException as error:
            if process.returncode is None:
                process.kill()
                await process.wait()
            if not isinstance(error, TimeoutError):
                raise
        if self._complaints:
            self._complaints.cancel()

    async def describe(self) -> Mapping[str, Any]:
        return {"kind": "build", "build": self._build.name, **self._said, **self._wanted}

    async def close(self) -> None:
        await self.stop()

    async def _ask(self, what: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process and self._process.stdin and self._process.stdout and self._complaints  # it was started
        line = b""
        try:
            self._process.stdin.write(json.dumps(what).encode() + b"\n")
            line = await self._process.stdout.readline()
            said: dict[str, Any] = json.loads(line)
        except (OSError, ValueError):
            self._process.stdin.close()  # in case it speaks on, but not JSON
            told = (await self._complaints or line).decode(errors="replace").strip().splitlines()[-1:]
            raise PhaselineError(f"{self.name}: its process broke off: {' '.join(told) or 'it says nothing'}") from None
        if "error" in said:
            raise PhaselineError(f"{self.name}: {said['error']}")
        return said
