"""Builds as contenders: the worker's process on the package at hand, and a git revision built into the cache."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from phaseline import SamplingParams, load
from phaseline.cli import guard_worker
from phaseline.errors import PhaselineError, RequestError
from phaseline.lab.contenders import Reading
from phaseline.lab.guard_builds import Build, WorkerContender, resolve_revision, revision_build, this_build
from phaseline.lab.systems.base import Ask
from support.tiny import write_llama

WORKER = Path(guard_worker.__file__)
ASKS = [Ask(list(range(5, 45)), 6), Ask("some text", 1), Ask([7], 3)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_llama(tmp_path_factory.mktemp("model") / "model.gguf"))


def serve(contender: WorkerContender, asks: Sequence[Ask] = ASKS) -> tuple[list[Reading], Mapping[str, Any]]:
    async def run() -> tuple[list[Reading], Mapping[str, Any]]:
        await contender.start()
        try:
            return [await contender.serve(ask) for ask in asks], await contender.describe()
        finally:
            await contender.stop()

    return asyncio.run(run())


def test_the_package_at_hand_serves_as_the_engine_does(model: str) -> None:
    contender = WorkerContender(this_build(WORKER), model, range(320), {"threads": 1, "chunk": 16})
    readings, told = serve(contender)
    engine = load(model, threads=1)
    for ask, reading in zip(ASKS, readings, strict=True):
        made = engine.generate(ask.prompt, SamplingParams(max_tokens=ask.max_tokens, ignore_eos=True))
        assert reading.answer == tuple(made.token_ids) and reading.trace is not None
        assert reading.trace.prompt_tokens == len(made.prompt_token_ids)
        assert len(reading.trace.events) == ask.max_tokens
        assert set(reading.costs) == ({"prefill", "decode"} if ask.max_tokens > 1 else {"prefill"})
    assert told["options"] == {"threads": 1, "chunk": 16} and Path(told["file"]).parent == WORKER.parents[1]
    assert serve(contender, ASKS[:1])[0][0].answer == readings[0].answer  # a new process, after a stop


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_a_slowed_build_says_the_same(model: str, phase: str) -> None:
    asks = [Ask(list(range(first, first + 40)), 4) for first in (5, 6, 7)]
    plain, slow = (
        serve(WorkerContender(this_build(WORKER), model, range(320), {"threads": 1}, s), asks)[0]
        for s in ({}, {phase: 50.0})
    )
    assert [one.answer for one in slow] == [one.answer for one in plain]
    assert min(one.costs[phase] for one in slow) > 5 * min(one.costs[phase] for one in plain)


def test_what_fails_is_told(model: str) -> None:
    with pytest.raises(PhaselineError, match=r"this: \w+: .*none\.gguf"):
        serve(WorkerContender(this_build(WORKER), "/none.gguf", range(9)))
    with pytest.raises(PhaselineError, match=r"this: RequestError: .*1000000"):
        serve(WorkerContender(this_build(WORKER), model, range(320)), [Ask([10**6], 2)])
    broken = Build("broken", [sys.executable, "-c", "import sys; sys.exit('no luck')"], dict(os.environ), Path("/"))
    with pytest.raises(PhaselineError, match="broken: its process broke off: no luck"):
        serve(WorkerContender(broken, model, range(9)))
    chatty = Build("chatty", [sys.executable, "-c", "print('hello'); input(); input()"], dict(os.environ), Path("/"))
    with pytest.raises(PhaselineError, match="chatty: its process broke off: "):
        serve(WorkerContender(chatty, model, range(9)))


def test_a_worker_that_dies_is_missed(model: str) -> None:
    async def run() -> None:
        contender = WorkerContender(this_build(WORKER), model, range(320))
        await contender.start()
        assert contender._process
        os.kill(contender._process.pid, signal.SIGKILL)
        try:
            await contender.serve(ASKS[0])
        finally:
            await contender.stop()

    with pytest.raises(PhaselineError, match="this: its process broke off: it says nothing"):
        asyncio.run(run())


# A package of the same name whose answers are its revision's, and a build backend that needs nothing from a registry.
PACKAGE = """
    from types import SimpleNamespace
    __version__ = "{version}"

    def SamplingParams(max_tokens, ignore_eos):
        return max_tokens

    class Engine:
        def generate(self, prompt, n):
            times = [0.001 * (i + 1) for i in range(n)]
            return SimpleNamespace(token_times_s=times, token_ids=[{answer}] * n, prompt_token_ids=prompt,
                                   cached_tokens=0)

    def load(model, **options):
        return Engine()
"""
BACKEND = """
    import zipfile

    def build_wheel(folder, settings=None, metadata=None):
        name = "phaseline-{version}-py3-none-any.whl"
        info = "phaseline-{version}.dist-info/"
        with zipfile.ZipFile(folder + "/" + name, "w") as wheel:
            wheel.write("src/phaseline/__init__.py", "phaseline/__init__.py")
            wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\\nName: phaseline\\nVersion: {version}\\n")
            wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
            wheel.writestr(info + "RECORD", "")
        return name
"""
PYPROJECT = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("repository")
    (root / "src" / "phaseline").mkdir(parents=True)

    def git(*words: str) -> None:
        identity = ("-c", "user.name=T", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
        subprocess.run(["git", "-C", str(root), *identity, *words], check=True, capture_output=True)

    git("init", "--quiet")
    for version, answer, broken in (("1.0", 11, False), ("2.0", 22, False), ("3.0", 33, True)):
        (root / "src" / "phaseline" / "__init__.py").write_text(
            textwrap.dedent(PACKAGE).format(version=version, answer=answer)
        )
        (root / "backend.py").write_text(
            "raise SystemExit('it does not build')" if broken else textwrap.dedent(BACKEND).format(version=version)
        )
        (root / "pyproject.toml").write_text(PYPROJECT)
        git("add", "--all")
        git("commit", "--quiet", "--message", version)
        git("tag", f"v{version}")
    return root


def test_a_revision_is_built_once_and_is_what_runs(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for revision, answer, version in (("v1.0", 11, "1.0"), ("HEAD~1", 22, "2.0")):
        build = revision_build(revision, WORKER, repository)
        readings, told = serve(WorkerContender(build, "any", range(9)), [Ask([1, 2], 4)])
        assert readings[0].answer == (answer,) * 4 and told["version"] == version
        assert readings[0].costs == pytest.approx({"prefill": 0.001, "decode": 0.001})
        assert build.name.startswith(f"{revision} (") and build.home.parent == tmp_path / "phaseline" / "builds"
    before = build.home.stat().st_mtime_ns
    assert revision_build(resolve_revision("v2.0", repository), WORKER, repository).home == build.home
    assert build.home.stat().st_mtime_ns == before
    with pytest.raises(PhaselineError, match=r"revision \w{10} cannot be built"):
        revision_build("v3.0", WORKER, repository)
    assert len(list(build.home.parent.iterdir())) == 2  # nothing half built is left


def test_another_package_is_not_taken_for_the_build(model: str, tmp_path: Path) -> None:
    here = this_build(WORKER)
    elsewhere = Build("elsewhere", here.command, here.environment, tmp_path)
    with pytest.raises(PhaselineError, match="elsewhere: not its own build was loaded"):
        serve(WorkerContender(elsewhere, model, range(320)))


def test_an_unknown_revision(repository: Path, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="revision 'v9' is unknown to git"):
        resolve_revision("v9", repository)
    with pytest.raises(RequestError, match="revision '--help' is unknown to git"):
        resolve_revision("--help", repository)
    with pytest.raises(RequestError, match="is unknown to git"):
        resolve_revision("HEAD", tmp_path)
