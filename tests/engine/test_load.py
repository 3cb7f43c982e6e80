"""Loading: what is refused and in which words, what must make no difference, and what it costs in memory."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from phaseline import _native, load
from phaseline.engine.types import SamplingParams, TokenLogprob
from phaseline.errors import CapacityError, FileFormatError, PhaselineError, RequestError, UnsupportedError
from support.kimi import write_kimi
from support.tiny import write_llama

CONTEXT = 256
PROMPT = [5 + i * 7 % 300 for i in range(70)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("load") / "tiny.gguf", context=CONTEXT)


def scores(path: Path, **options: Any) -> list[TokenLogprob | None]:
    """Everything the model says about a prompt and twelve tokens after it, from its logits' very bits."""
    engine = load(path, **options)
    params = SamplingParams(max_tokens=12, prompt_logprobs=3, logprobs=3, temperature=1.0, seed=1, ignore_eos=True)
    answer = engine.generate(PROMPT, params)
    engine.close()
    return [*answer.prompt_logprobs, *answer.logprobs]


# What is refused.


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"mode": "sprint"}, "mode 'sprint' is not one of walk, eager, layer, dispatch, chunk"),
        ({"numerics": "exact"}, "numerics 'exact' is not one of fast, invariant, reference"),
        ({"kv_type": "int3"}, "kv_type 'int3' is not one of bf16, f32"),
        ({"policy": "fastest"}, "'fastest' is unknown; supported: mixed, prefill-first, decode-first"),
        ({"numerics": "reference", "mode": "eager"}, "reference .* no mode eager"),
        ({"numerics": "reference", "level": "portable"}, "reference .* no level"),
    ],
)
def test_an_unknown_choice_is_refused_by_name(tmp_path: Path, option: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        load(tmp_path / "nowhere.gguf", **option)  # before any file is looked for


def test_an_unknown_level_is_refused_by_name(model: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"level 'sse9': there is no such level .*portable"):
        load(model, level="sse9")


@pytest.mark.parametrize("bad", [0, -1, 2.5, True, "4", 1 << 70])
@pytest.mark.parametrize("option", ["threads", "chunk", "max_running", "context", "memory"])
def test_counts_are_whole_and_in_range(model: Path, option: str, bad: Any) -> None:
    with pytest.raises(RequestError, match=f"^{option} = .*: it must be a whole number from 1 to"):
        load(model, **{option: bad})


@pytest.mark.parametrize("level", [name for name in _native.known_levels() if name not in _native.levels()])
def test_a_level_beyond_this_processor_says_so(model: Path, level: str) -> None:
    with pytest.raises(UnsupportedError, match=f"'{level}': this machine cannot run it"):
        load(model, level=level)


def test_a_context_beyond_the_models_is_refused(model: Path) -> None:
    with pytest.raises(CapacityError, match=f"context {CONTEXT + 1} .* holds 1 to {CONTEXT}"):
        load(model, context=CONTEXT + 1)
    assert load(model, context=CONTEXT).scheduler.context == CONTEXT


def test_too_little_memory_is_refused_with_what_would_fit(tmp_path: Path) -> None:
    path = write_llama(tmp_path / "long.gguf", context=1 << 16)
    memory = 260 << 20
    with pytest.raises(CapacityError, match="does not fit") as refusal:
        load(path, context=1 << 16, memory=memory)
    fits = int(re.findall(r"a context of (\d+) tokens would fit", str(refusal.value))[0])
    engine = load(path, context=fits, memory=memory)
    assert engine.scheduler.context == fits <= engine.scheduler.table.capacity(512)
    with pytest.raises(CapacityError):
        load(path, context=fits + 1, memory=memory)
    assert load(path, memory=memory).scheduler.context == fits


def test_memory_for_nothing_at_all_is_refused_with_the_least(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"layers": 4, "heads": 4, "kv_heads": 4, "head_dim": 1024}  # a page of bf16 is 2 MiB
    path = write_llama(tmp_path / "wide.gguf", format="Q4_0", context=64, **sizes)
    least = {}
    for numerics in ("fast", "reference"):
        with pytest.raises(CapacityError, match="at least") as refusal:
            load(path, memory=1 << 20, numerics=numerics)
        least[numerics] = int(re.findall(r"at least (\d+) MiB", str(refusal.value))[0])
        assert load(path, memory=least[numerics] << 20, numerics=numerics).scheduler.context >= 1
        with pytest.raises(CapacityError):
            load(path, memory=(least[numerics] - 1) << 20, numerics=numerics)
    assert least["reference"] - least["fast"] > 5 * path.stat().st_size >> 20  # its weights and state are float32


def test_memory_is_reckoned_with_what_weights_are_packed_into(tmp_path: Path) -> None:
    """Three bits for a weight that the file holds in two; 256 MiB are for all but weights and state."""
    sizes: dict[str, Any] = {"layers": 8, "width": 256, "ff": 1024, "vocab": 4096, "context": 64}
    path = write_llama(tmp_path / "wide.gguf", format="IQ2_XXS", **sizes)
    with pytest.raises(CapacityError, match="at least") as refusal:
        load(path, memory=1 << 20)
    least = int(re.findall(r"at least (\d+) MiB", str(refusal.value))[0])
    assert (least - 256) << 20 > 1.5 * path.stat().st_size


@pytest.mark.parametrize(
    ("extra", "error", "message"),
    [
        ({"general.architecture": "perceiver"}, UnsupportedError, "architecture 'perceiver' .*supported: .*llama"),
        ({"llama.logit_scale": 2.0}, UnsupportedError, r"unknown setting llama\.logit_scale"),
        ({"llama.expert_count": 8}, FileFormatError, r"llama\.expert_used_count is missing"),
        ({"llama.block_count": 0}, FileFormatError, r"llama\.block_count is 0"),
        ({"llama.embedding_length": 96}, FileFormatError, r"tensor 'token_embd\.weight' has shape"),
        ({"tokenizer.ggml.pre": "unheard-of"}, UnsupportedError, "unheard-of"),
    ],
)
def test_a_model_that_is_not_understood_is_refused_by_name(
    tmp_path: Path, extra: dict[str, Any], error: type[PhaselineError], message: str
) -> None:
    path = write_llama(tmp_path / "odd.gguf", extra=extra)
    with pytest.raises(error, match=message):
        load(path)


@pytest.mark.parametrize("keep", [0, 3, 100, 20_000, -1])
def test_a_file_cut_short_is_an_error(tmp_path: Path, model: Path, keep: int) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(model.read_bytes()[:keep])
    with pytest.raises(FileFormatError):
        load(path)


def test_a_file_that_is_not_there_or_not_a_model(tmp_path: Path) -> None:
    with pytest.raises(PhaselineError, match="nowhere"):
        load(tmp_path / "nowhere.gguf")
    (tmp_path / "text.gguf").write_text("a text" * 1000)
    with pytest.raises(FileFormatError):
        load(tmp_path / "text.gguf")


# What makes no difference.


@pytest.mark.parametrize(
    "options",
    [
        {"numerics": "invariant"},
        {"mode": "walk"},
        {"mode": "eager"},
        {"mode": "layer"},
        {"chunk": 1},
        {"chunk": 7, "threads": 2},
        {"context": 96, "max_running": 1, "memory": 400 << 20},
        {"level": _native.levels()[-1]},
    ],
)
def test_options_that_give_the_same_bits(model: Path, options: dict[str, Any]) -> None:
    assert scores(model, **options) == scores(model, threads=1)


def test_a_model_that_carries_a_state(tmp_path: Path) -> None:
    """Read in any way it gives the same bits, and a long prompt that comes again resumes behind its first chunk."""
    path = write_kimi(tmp_path / "tiny.gguf")
    expected = scores(path, threads=1)
    for mode in ("walk", "layer", "eager", "chunk"):
        assert scores(path, mode=mode, threads=2, chunk=27) == expected
    prompt, params = PROMPT * 8, SamplingParams(max_tokens=8, ignore_eos=True)  # 560 tokens
    tight: dict[str, Any] = {"max_running": 1, "context": 600, "memory": 300 << 20}
    for engine in (load(path), load(path, **tight)):
        answers = [engine.generate(prompt, params) for _ in range(2)]
        assert [answer.cached_tokens for answer in answers] == [0, 512]
        assert answers[0].token_ids == answers[1].token_ids
        engine.close()


@pytest.mark.parametrize("options", [{"numerics": "reference"}, {"numerics": "reference", "mode": "walk"}])
def test_the_reference_is_close(model: Path, options: dict[str, Any]) -> None:
    native, reference = scores(model, kv_type="f32"), scores(model, **options)
    for ours, exact in zip(native, reference, strict=True):
        assert (ours and ours.token) == (exact and exact.token)
        if ours and exact:
            assert ours.logprob == pytest.approx(exact.logprob, abs=1e-3)


def test_the_file_is_not_needed_once_loaded(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "gone.gguf"
    path.write_bytes(model.read_bytes())
    engine = load(path)
    expected = engine.generate(PROMPT).token_ids
    engine.scheduler.table.clear_cache()
    with path.open("r+b") as file:  # a page still mapped would now be a bus error
        file.truncate(0)
    assert engine.generate(PROMPT).token_ids == expected


def test_prompts_together_longer_than_the_context_share_a_chunk(model: Path) -> None:
    engine = load(model, chunk=512, max_running=8)
    together = engine.generate([[token] * 200 for token in range(5, 13)])
    assert together[3].token_ids == engine.generate([8] * 200).token_ids


# What it costs.

_MEASURE = """
import sys
from pathlib import Path

def resident():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))

import numpy
from phaseline import load
before = resident()
engine = load(sys.argv[1])
print(before, resident())
"""


def test_resident_memory_stays_near_the_files_size(smollm2_path: Path) -> None:
    command = [sys.executable, "-c", _MEASURE, str(smollm2_path)]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    before, after = map(int, out.split())
    size = smollm2_path.stat().st_size
    print(f"before {before / 1e6:.1f} MB; weights {(after - before) / 1e6:.1f} MB: {(after - before) / size:.2f} files")
    assert before <= 90e6
    assert after - before <= 1.5 * size
