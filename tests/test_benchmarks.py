"""The benchmarks' own arithmetic, and that they run: on models that take no time."""

import json
import math
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import numpy as np
import pytest

from phaseline.engine.load import load
from phaseline.execute.native import NativeExecutor, best_level
from phaseline.families import model_program
from phaseline.files.gguf import open_gguf
from support.models import logits, open_model
from support.tiny import write_llama

FOLDER = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """`benchmark.NAME` is the module of that name, found as when it is run as a script."""
    monkeypatch.syspath_prepend(str(FOLDER))

    class Benchmarks(ModuleType):
        def __getattr__(self, name: str) -> ModuleType:
            return __import__(name)

    before = set(sys.modules)
    yield Benchmarks("benchmarks")
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(FOLDER)):
            del sys.modules[name]


def test_every_peer_has_its_script(benchmark: ModuleType) -> None:
    for name in benchmark.versus.PEERS:
        build = benchmark.versus.peer_build(name, "python")
        compile(Path(build.command[-1]).read_text(encoding="utf-8"), build.command[-1], "exec")


def test_accuracy_tells_eight_bits_from_fifteen(
    benchmark: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = write_llama(tmp_path / "tiny.gguf", layers=2, width=64, ff=96, context=64)
    text = tmp_path / "text.txt"
    text.write_text("abcde " * 60, encoding="utf-8")
    monkeypatch.setattr(benchmark.accuracy, "TEXT", text)
    record = benchmark.accuracy.compare(str(model), 1, 64, 32, lambda done, total: None)
    results = record["results"]
    assert record["decode_has_the_bits_of_prefill"] and results["prefill"] == results["decode"]
    assert results["float32 reference"]["mean_kl"] == 0 and results["float32 reference"]["disagreements"] == 0
    assert 0 < results["prefill"]["mean_kl"] < 0.2 * results["8-bit activations"]["mean_kl"]
    assert {row["rows"] for row in results.values()} == {64}


def test_a_score_is_that_of_its_formulas(benchmark: ModuleType) -> None:
    rng = np.random.default_rng(0)
    p, q = (np.log(rng.dirichlet(np.ones(5), 3)) for _ in range(2))
    score, following = benchmark.accuracy.Score(), np.array([4, 0, 2])
    score.add(p, (q + 7).astype(np.float64), following)  # logits are known up to a constant
    assert np.isclose(score.kl, sum(np.exp(p[i, j]) * (p[i, j] - q[i, j]) for i in range(3) for j in range(5)))
    assert np.isclose(score.nll, -(q[0, 4] + q[1, 0] + q[2, 2]))
    assert score.disagreements == sum(p[i].argmax() != q[i].argmax() for i in range(3))


def test_the_worst_row_is_found(benchmark: ModuleType) -> None:
    rows, factor = benchmark.few_rows.worst({1: 10.0, 2: 12.0, 3: 30.0, 4: 31.0})
    assert rows == 3 and np.isclose(factor, 10 / 6)


def test_few_rows_takes_every_count(benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    few = benchmark.few_rows
    monkeypatch.setattr(few, "FOOTPRINT", 1)
    executor = few.products(few.FORMATS["Q4_K"], 80, 256, 1, None)
    assert isinstance(executor, NativeExecutor)
    found = few.sweep(executor, 1)
    assert list(found) == list(few.ROWS) and all(len(of) == 1 and of[0] > 0 for of in found.values())


def test_a_plot_is_well_formed_and_names_its_lines(benchmark: ModuleType) -> None:
    plot = benchmark.line_plot.line_plot(
        "a < b", "rows", "s", {"one": [(1, 3.0), (64, 5.0)], "two": [(1, 0.5), (64, 90)]}
    )
    words = [one.text for one in ElementTree.fromstring(plot).iter() if one.text and one.text.strip()]
    assert {"a < b", "rows", "s", "one", "two", "64", "128"} <= set(words)


def test_steps_fill_their_table(benchmark: ModuleType, tmp_path: Path) -> None:
    """Every figure of it, on a model of two layers."""
    steps = benchmark.steps
    path = write_llama(tmp_path / "tiny.gguf", layers=2, context=1024)
    system = steps.PhaselineSystem(load(path, threads=1, context=600))
    with system.slots([513] * steps.STREAMS) as (slots, pages):
        bench = steps.Bench(system, slots, pages, 512)
        rows = steps.mixed(bench, 1) | steps.batched(bench, system, 1)
    rows |= steps.between(system, 1, 1) | steps.between(system, 16, 1)
    assert len(rows) == 8 and all(figure["value"] > 0 for figure in rows.values())
    assert system.line()[:2] == (0, 0)


def test_sparse_models_are_predicted_from_their_bytes(
    benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    drawn = tmp_path / "curve.svg"
    options = ["--tiny", "--rounds", "1", "--prompt", "16", "--tokens", "4", "--threads", "1", "--svg", str(drawn)]
    monkeypatch.setattr(sys, "argv", ["sparse.py", *options])
    assert benchmark.sparse.main() == 0
    record = json.loads(capsys.readouterr().out)
    rows = {(r["model"], r["phase"], r["mode"], r["chunk"]): r for r in record["rows"]}
    for model in ("sparse", "dense"):
        curve = [rows[model, "prefill", "chunk", chunk] for chunk in (1, 2, 4, 8, 16)]
        assert curve[0]["allowed"] == 1
        assert [r["allowed"] for r in curve] == sorted(r["allowed"] for r in curve)
        for row in curve:
            bytes_allow = curve[0]["tok_s"] * row["allowed"]
            assert row["predicted_tok_s"] == pytest.approx(min(bytes_allow, row["arithmetic_tok_s"]))
    grouped, alone = (rows["sparse", "prefill", mode, 16]["sparse"] for mode in ("chunk", "dispatch"))
    assert grouped["routed_bytes_observed"] < alone["routed_bytes_observed"]
    assert len(record["ratios"]) == 4
    named = {text.text for text in ElementTree.parse(drawn).iter("{http://www.w3.org/2000/svg}text")}
    assert named >= {"sparse", "sparse bound", "dense", "dense bound"}


@pytest.mark.parametrize("shape", ["tiny-sparse", "tiny-dense", "tiny-latent", "tiny-linear", "tiny-k3"])
def test_a_random_model_gives_numbers(benchmark: ModuleType, tmp_path: Path, shape: str) -> None:
    with open_gguf(benchmark.random_model.write(tmp_path / "model.gguf", shape)) as file:
        model = open_model(file)
        found = logits(model.native(), list(range(40)), chunk=25)
    assert np.isfinite(found).all() and found.std() > 0.1


def test_attribution_adds_up(
    benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Parts of a row make its wall time, factors from way to way the factor of all of them, and grouping reads less."""
    options = ["--tiny", "--rounds", "2", "--prompt", "64", "--tokens", "3", "--threads", "1"]
    monkeypatch.setattr(sys, "argv", ["attribution.py", *options, "--json"])
    assert benchmark.attribution.main() == 0
    record = json.loads(capsys.readouterr().out)
    rows = {(row["mode"], row["chunk"]): row for row in record["rows"]}
    assert len(rows) == 1 + 4 * 4
    for row in rows.values():
        for parts in (row["prefill_us"], row["decode_us"], *row["prefill_rounds"], *row["decode_rounds"]):
            assert sum(parts.values()) == pytest.approx(2 * parts["wall"])
            assert all(parts[kind] > 0 for kind in ("products", "recurrence", "experts", "router", "between"))
        assert row["tok_s"] == pytest.approx(1e6 / row["prefill_us"]["wall"]) and row["decode_tok_s"] > 0
    for chain in record["factors"].values():
        *steps, total = chain
        assert math.prod(step["factor"] for step in steps) == pytest.approx(total["factor"])
        assert total["factor"] == pytest.approx(rows["chunk", 64]["tok_s"] / rows["walk", 1]["tok_s"])
    assert rows["walk", 1]["expert_reads"] == rows["dispatch", 64]["expert_reads"] == 2
    assert rows["chunk", 64]["expert_reads"] <= 8 / 64
    benchmark.attribution.show(record)
    assert "product" in capsys.readouterr().out


def test_linear_attention_is_timed_against_the_context(
    benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And what falls with the context is told from what does not."""
    options = ["--tiny", "--rounds", "2", "--chunk", "512", "--threads", "1", "--json"]
    monkeypatch.setattr(sys, "argv", ["linear.py", *options])
    assert benchmark.linear.main() == 0
    record = json.loads(capsys.readouterr().out)
    assert [row["context"] for row in record["rows"]] == [512, 1024]
    for row in record["rows"]:
        assert sum(share["rounds"][0] for share in row["shares"].values()) == pytest.approx(1)
        assert all(share["value"] > 0 for share in row["shares"].values())
        assert row["without_latent_tok_s"]["value"] > row["chunk_tok_s"]["value"] > 0
    slow = dict.fromkeys(["recurrence", "latent attention", "experts", "products", "others"], 1.0)
    later = slow | {"latent attention": 6.0}
    rows = [benchmark.linear.row([[slow, later]] * 2, context, 10) for context in (10, 20)]
    assert [row["prompt_tok_s"]["value"] for row in rows] == [2, pytest.approx(20 / 15)]
    assert benchmark.linear.falls(rows, "chunk_tok_s")["value"] == pytest.approx(0.5)
    assert benchmark.linear.falls(rows, "without_latent_tok_s")["value"] == 0


TINY = {"layers": 2, "width": 128, "ff": 192, "heads": 4, "head_dim": 32, "vocab": 300, "context": 96}
OF_FAMILY = {"gpt2": {"kv_heads": 4}, "qwen3": {"kv_heads": 2}, "gemma3": {"kv_heads": 1, "window": 24}}


@pytest.mark.parametrize("family", OF_FAMILY)
def test_families_are_measured_at_a_given_shape(
    benchmark: ModuleType, family: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shape = benchmark.real_shapes.Shape(family, **TINY, **OF_FAMILY[family])
    monkeypatch.setattr(benchmark.families, "SHAPES", {family: shape})
    monkeypatch.setattr(benchmark.families, "CONTEXT", shape.context)
    monkeypatch.setattr(benchmark.families, "wanted_peers", lambda chosen: [])
    options = ["--models", family, "--rounds", "2", "--prompt", "48", "--tokens", "4", "--threads", "1", "--json"]
    monkeypatch.setattr(sys, "argv", ["families.py", *options])
    assert benchmark.families.main() == 0
    (row,) = json.loads(capsys.readouterr().out)["models"]
    assert row["decode_bytes"] > 8.5 / 8 * sum(a * b for a, b in shape.matrices().values()) * shape.layers
    assert all(len(row[phase]["seconds"]) == 2 and row[phase]["tok_s"] > 0 for phase in ("prefill", "decode"))
    assert row["decode"]["share"] > 0


@pytest.mark.parametrize("family", OF_FAMILY)
def test_transformers_is_given_a_model_of_the_same_size(benchmark: ModuleType, family: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="the peer transformers is not installed")
    shape = benchmark.real_shapes.Shape(family, **TINY, **OF_FAMILY[family])
    benchmark.real_shapes.write(tmp_path / "tiny.gguf", shape, format="F32")
    (tmp_path / "config.json").write_text(json.dumps(benchmark.families.config(shape)))
    net = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(tmp_path))
    with open_gguf(tmp_path / "tiny.gguf") as file:
        _, program = model_program(file)
    assert sum(math.prod(weight.shape) for weight in program.weights().values()) == net.num_parameters()


@pytest.mark.skipif(shutil.which("c++") is None, reason="there is no C++ compiler")
def test_both_forms_of_delta_attention_are_the_recurrence(benchmark: ModuleType, tmp_path: Path) -> None:
    """From a state that is not zero, whole chunks and ragged ones; a state that is not carried on is seen."""
    forms = benchmark.delta_forms
    library = forms.build(best_level(), "c++", tmp_path)
    for rows in (1, 16, 37):
        data = forms.Rows(library, rows, 32)
        assert all(data.error(form) < 1e-5 for form in forms.FORMS)
    data.state[:] = 0
    data.begin = lambda: None  # begins from what the last run left
    assert all(data.error(form) > 1e-2 for form in forms.FORMS)
    found = forms.compare(library, [16], 32, 2, best_level())
    assert found["lengths"][16]["recurrence over chunks"]["value"] > 0
