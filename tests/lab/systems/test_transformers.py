"""A tiny model of the transformers library as a system: what it is asked, what it brings, what it refuses."""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any, TypeVar

import pytest

from phaseline.errors import RequestError, UnsupportedError
from phaseline.files.gguf import open_gguf
from phaseline.lab.drive import follow
from phaseline.lab.systems.base import Ask
from phaseline.lab.systems.transformers import TransformersSystem
from phaseline.lab.trace import META, Trace
from support.models import open_model
from support.streams import Stream
from support.streams import follow as gather
from support.tiny import write_llama
from support.transformers_llama import transformers_llama

torch = pytest.importorskip("torch", reason="the reference torch is not installed")
transformers = pytest.importorskip("transformers", reason="the reference transformers is not installed")

T = TypeVar("T")
PROMPT = "in the heat of the sun"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds the same model as a GGUF file, tiny.gguf, and as the library saves it, with its tokenizer."""
    folder = tmp_path_factory.mktemp("transformers")
    path = write_llama(folder / "tiny.gguf", vocab=400)
    with open_gguf(path) as file:
        transformers_llama(open_model(file)).save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(folder, gguf_file=path.name).save_pretrained(folder)
    return folder


def using(path: Path, work: Callable[[TransformersSystem], Awaitable[T]]) -> T:
    async def run() -> T:
        system = TransformersSystem.load(path, dtype="float32")
        try:
            return await work(system)
        finally:
            await system.close()

    return asyncio.run(run())


def text(stream: Stream) -> str:
    assert stream.fault is None
    return "".join(piece.text for piece in stream.content)


def expected(folder: Path, prompt: str, tokens: int) -> tuple[list[int], str]:
    """What the library's own loop makes of a prompt: its ids, and their text."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    ids = tokenizer(prompt, return_tensors="pt")
    made = model.generate(**ids, max_new_tokens=tokens, do_sample=False, pad_token_id=1, eos_token_id=None)
    answer = made[0, ids["input_ids"].shape[1] :].tolist()
    return answer, tokenizer.decode(answer, skip_special_tokens=True)


@pytest.mark.parametrize("file", [".", "tiny.gguf"])
def test_the_answer_is_that_of_the_librarys_own_loop(tiny: Path, file: str) -> None:
    _, answer = expected(tiny, PROMPT, 40)

    async def work(system: TransformersSystem) -> Stream:
        return await gather(system, Ask(PROMPT, 40, 40))

    stream = using(tiny / file, work)
    assert text(stream) == answer and len(set(answer)) > 5, "an answer of one letter shows nothing"
    assert [piece.tokens for piece in stream.content] == [1] * 40
    tokens = len(transformers.AutoTokenizer.from_pretrained(tiny)(PROMPT)["input_ids"])
    assert stream.facts == {"prompt_tokens": tokens, "cached_tokens": 0, "finish_reason": "length"}


def test_a_prompt_is_read_at_once_and_then_one_row_at_a_time(tiny: Path) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny)
    rows: list[int] = []
    model.get_input_embeddings().register_forward_pre_hook(lambda module, given: rows.append(given[0].numel()))
    logits: list[int] = []
    model.lm_head.register_forward_pre_hook(lambda module, given: logits.append(given[0].shape[1]))

    async def run() -> Trace:
        system = TransformersSystem(model)
        try:
            return await follow(system, Ask(range(5, 55), 4, 4))
        finally:
            await system.close()

    trace = asyncio.run(run())
    assert rows == [50, 1, 1, 1] and logits == [1, 1, 1, 1]
    assert [event.tokens for event in trace.events] == [1, 1, 1, 1, None] and trace.events[-1].channel == META
    assert trace.error is None and trace.prompt_tokens == 50 and trace.finish_reason == "length"


def test_streams_take_turns_and_do_not_mix(tiny: Path) -> None:
    asks = [Ask(PROMPT, 12, 12), Ask("a tale", 9, 9), Ask([7, 8, 9], 1, 1)]
    order: list[int] = []

    async def one(system: TransformersSystem, number: int) -> str:
        said = ""
        async for pieces in system.generate(asks[number]):
            order.append(number)
            said += "".join(piece.text for piece in pieces)
        return said

    async def work(system: TransformersSystem) -> tuple[list[str], list[str]]:
        alone = [text(await gather(system, ask)) for ask in asks]
        return alone, await asyncio.gather(*(one(system, number) for number in range(3)))

    alone, together = using(tiny, work)
    assert alone == together
    assert order == [0, 1, 2] + [0, 1] * 8 + [0] * 3


def test_a_stream_that_is_given_up_leaves_the_others_alone(tiny: Path) -> None:
    async def work(system: TransformersSystem) -> tuple[str, str]:
        before = text(await gather(system, Ask(PROMPT, 9, 9)))
        async with aclosing(system.generate(Ask("a tale", 50, 50))) as stream:
            await anext(stream)
        return before, text(await gather(system, Ask(PROMPT, 9, 9)))

    before, after = using(tiny, work)
    assert before == after


def test_where_an_answer_ends(tiny: Path, tmp_path: Path) -> None:
    """The seventh token of the answer is declared to end a text, unless it came earlier."""
    answer, _ = expected(tiny, PROMPT, 12)
    end = answer[6]
    first = answer.index(end) + 1
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny)
    model.generation_config.eos_token_id = end
    model.save_pretrained(tmp_path)
    prompt = transformers.AutoTokenizer.from_pretrained(tiny)(PROMPT)["input_ids"]

    async def work(system: TransformersSystem) -> list[tuple[int, str]]:
        asks = [Ask(prompt, 12), Ask(prompt, 12, ignore_eos=True), Ask(prompt, 12, 12), Ask(prompt, 12, first)]
        streams = [await gather(system, ask) for ask in asks]
        return [(len(stream.content), stream.facts["finish_reason"]) for stream in streams]

    plain, ignoring, full, delayed = using(tmp_path, work)
    assert plain == (first, "stop") and ignoring == full == (12, "length")
    assert delayed[0] > first


def test_what_a_stream_is_refused_for(tiny: Path) -> None:
    async def work(system: TransformersSystem) -> list[str | None]:
        with pytest.raises(RequestError, match=r"top_p.*likeliest"):
            await gather(system, Ask([5], 2, options={"temperature": 0, "top_p": 0.5}))
        with pytest.raises(RequestError, match="temperature"):
            await gather(system, Ask([5], 2, options={"temperature": 1}))
        assert (await gather(system, Ask([5], 2, options={"temperature": 0, "seed": 3}))).fault is None
        asks = [Ask([5] * 300, 2), Ask([400], 2), Ask([-1], 2), Ask([], 2)]
        return [(await gather(system, ask)).fault for ask in asks]

    faults = using(tiny, work)
    for fault, told in zip(faults, ["context of 256", "0 to 399", "0 to 399", "at least one"], strict=True):
        assert fault and told in fault


def test_text_needs_a_tokenizer(tiny: Path) -> None:
    async def run() -> tuple[str | None, str]:
        system = TransformersSystem(transformers.AutoModelForCausalLM.from_pretrained(tiny))
        return (await gather(system, Ask("a", 2))).fault, text(await gather(system, Ask([5], 2)))

    fault, answer = asyncio.run(run())
    assert fault and "no tokenizer" in fault and answer == ""


def test_what_it_says_of_itself(tiny: Path) -> None:
    async def work(system: TransformersSystem) -> dict[str, Any]:
        return dict(await system.describe())

    before = torch.get_num_threads()
    packed, plain = using(tiny / "tiny.gguf", work), using(tiny, work)
    assert packed["weights"] == "dequantised from tiny.gguf" and packed["model"] == "tiny"
    assert plain["weights"] == "as in the folder, in float32" and plain["architecture"] == "LlamaForCausalLM"
    assert packed["dtype"] == "float32" and packed["context"] == 256 and packed["threads"] == before
    assert transformers.__version__ in packed["version"]
    json.dumps([packed, plain])


def test_the_weights_have_the_asked_type(tiny: Path) -> None:
    async def kind(path: Path) -> str:
        system = TransformersSystem.load(path)
        await system.close()
        return str((await system.describe())["dtype"])

    assert [asyncio.run(kind(path)) for path in (tiny, tiny / "tiny.gguf")] == ["bfloat16"] * 2


def test_what_is_no_model(tiny: Path, tmp_path: Path) -> None:
    for path in ("gpt2", tmp_path, tmp_path / "none.gguf", tiny / "model.safetensors"):
        with pytest.raises(UnsupportedError, match=r"neither a folder .* not downloaded"):
            TransformersSystem.load(path)
    (tmp_path / "bad.gguf").write_bytes(b"GGUF and no more")
    with pytest.raises(UnsupportedError, match="cannot load"):
        TransformersSystem.load(tmp_path / "bad.gguf")


def test_a_model_that_lacks_weights_is_refused(tiny: Path, tmp_path: Path) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny)
    state = {name: values for name, values in model.state_dict().items() if "layers.1.mlp.up_proj" not in name}
    model.save_pretrained(tmp_path, state_dict=state)
    with pytest.raises(UnsupportedError, match=r"lacks .*layers\.1\.mlp\.up_proj"):
        TransformersSystem.load(tmp_path)


@pytest.mark.parametrize("package", ["torch", "transformers"])
def test_without_the_packages(tiny: Path, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)  # how an import fails that finds nothing
    with pytest.raises(UnsupportedError, match=rf"package {package}: pip install 'phaseline\[reference\]'"):
        TransformersSystem.load(tiny)
