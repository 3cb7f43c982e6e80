"""What goes wrong with one request, or with the file or the host, stays there."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from phaseline import load
from phaseline.engine.types import Delta, FinishReason, Request, SamplingParams
from phaseline.errors import FileFormatError, PhaselineError
from support.tiny import write_llama


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("isolation") / "tiny.gguf")


def test_a_request_for_which_no_token_exists_fails_alone(model: Path) -> None:
    engine = load(model, threads=1)
    alone = engine.generate([3, 4, 5], SamplingParams(max_tokens=8)).token_ids
    nothing = SamplingParams(max_tokens=5, min_tokens=5, stop_ids=list(range(engine.executor.program.vocab)), n=2)
    engine.submit(Request("good", [3, 4, 5], SamplingParams(max_tokens=8)))
    deltas = engine.step()
    engine.submit(Request("bad", [3, 4, 9], nothing))
    errors = 0
    while engine.has_work:
        try:
            deltas += engine.step()
        except PhaselineError as error:
            assert "no token can be sampled" in str(error)
            errors += 1
    assert errors == 1
    assert all(isinstance(d, Delta) and d.request_id == "good" for d in deltas)
    assert [t for d in deltas for t in d.token_ids] == alone
    assert deltas[-1].finish_reason is FinishReason.LENGTH
    table = engine.scheduler.table
    table.clear_cache()
    table.check()
    assert table.free_pages == table.pages


def test_a_tokenizer_that_does_not_fit_the_model_is_refused_with_the_file_named(tmp_path: Path) -> None:
    tokens = [f"t{i}" for i in range(300)]
    path = write_llama(tmp_path / "short.gguf", vocab=320, extra={"tokenizer.ggml.tokens": tokens})
    with pytest.raises(FileFormatError, match=r"short\.gguf"):
        load(path)


def test_threads_that_the_system_refuses_are_a_clear_error(model: Path) -> None:
    code = f"import phaseline\nphaseline.load({str(model)!r}, threads=512)"

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))

    done = subprocess.run([sys.executable, "-c", code], preexec_fn=limit, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "CapacityError: 512 threads cannot be created" in done.stderr


def test_more_threads_than_cores_still_answer(model: Path) -> None:
    params = SamplingParams(max_tokens=4)
    assert load(model, threads=9).generate([5, 6], params).token_ids == load(model).generate([5, 6], params).token_ids


def test_a_forked_child_is_told_to_load_for_itself(model: Path) -> None:
    code = f"""
import os, phaseline
engine = phaseline.load({str(model)!r}, threads=2)
child = os.fork()
if child == 0:
    try:
        engine.generate([1, 2])
    except phaseline.errors.PhaselineError as error:
        os._exit(7 if "forking" in str(error) else 8)
    os._exit(9)
os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=60, env=os.environ).returncode == 7
