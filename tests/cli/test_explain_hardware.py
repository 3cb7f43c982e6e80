"""`phaseline explain --hardware`: the paper calculator at the command line."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from phaseline.cli.main import main
from support.command import Run

QUIZ = (
    *("--hardware", "tpu-v5e", "--count", "16", "--params", "30e9", "--weight-bits", "8"),
    *("--kv-bytes-per-token", "100e3", "--context", "8192", "--batch", "4,256"),
)
MIXTURE = {
    **{"model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32},
    **{"num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 40960},
    **{"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "torch_dtype": "bfloat16"},
}


@pytest.fixture
def explain(capsys: pytest.CaptureFixture[str]) -> Any:
    def make(*args: str) -> dict[str, Any]:
        assert main(["explain", *args, "--json"]) == 0
        return dict(json.loads(capsys.readouterr().out))

    return make


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("models") / "config.json"
    path.write_text(json.dumps(MIXTURE))
    return str(path)


def test_the_textbook_quiz(explain: Any) -> None:
    found = explain(*QUIZ)
    few, many = (step for step in found["steps"] if step["phase"] == "decode")
    assert (few["rows"], many["rows"]) == (4, 256)
    assert few["step_s"] == pytest.approx(2.5e-3, rel=0.03)
    assert (few["product_limit"], few["attention_limit"]) == ("bandwidth", "bandwidth")
    assert many["step_s"] == pytest.approx(21e-3, rel=0.01)
    assert (many["product_limit"], many["attention_limit"]) == ("compute", "bandwidth")
    assert many["product_flops_per_byte"] == 512 and many["fits"] is True
    assert found["attention_intensity"]["prefill"] == 4096
    assert found["critical_batch"] == pytest.approx(120, rel=0.01)
    assert found["largest_batch"] == 275
    assert {"model", "machine", "build", "version", "date", "command", "hardware", "finding"} <= found.keys()
    assert found["hardware"]["count"] == 16 and "Google" in found["hardware"]["source"]


def test_the_quiz_as_it_is_printed(phaseline: Run) -> None:
    done = phaseline("explain", *QUIZ)
    assert (done.returncode, done.stderr) == (0, "")
    rows = [line.split() for line in done.stdout.splitlines()]
    few = next(row for row in rows if row[:2] == ["decode", "4"])
    many = next(row for row in rows if row[:2] == ["decode", "256"])
    assert few[3:8] == ["2.29", "bandwidth", "0.25", "bandwidth", "2.54"]
    assert many[3:8] == ["4.87", "compute", "16", "bandwidth", "20.9"]
    assert "largest batch that fits: 275" in done.stdout
    assumed = [line for line in done.stdout.splitlines() if line.startswith("- ")]
    for word in ("vendor's, dense", "16 chips share", "in bf16", "launching", "8192 positions", "activations"):
        assert any(word in line for line in assumed), word
    assert "finding: batch 4: at least 2.54 ms (bandwidth-bound products" in done.stdout


def test_the_type_of_the_arithmetic(explain: Any) -> None:
    plain, narrow = explain(*QUIZ), explain(*QUIZ, "--compute", "int8")
    assert narrow["critical_batch"] == pytest.approx(plain["critical_batch"] * 393 / 197)
    assert narrow["steps"][-1]["attention_s"] == plain["steps"][-1]["attention_s"]
    # what attention computes is not what the products compute: only their share of a prefill step shrinks
    assert narrow["steps"][0]["attention_s"] == plain["steps"][0]["attention_s"] > 0
    assert narrow["steps"][0]["products_s"] == pytest.approx(plain["steps"][0]["products_s"] * 197 / 393)


def test_a_mixture_of_experts_from_its_config(explain: Any, phaseline: Run, mixture: str) -> None:
    found = explain(mixture, "--hardware", "h100")
    experts = found["experts"]
    assert (experts["experts"], experts["active"]) == (128, 8)
    routed = 48 * 8 * 3 * 2048 * 768 * 2
    shared = 48 * (2 * 2048 * 128 * (32 + 4) + 2048 * 128) * 2
    assert (experts["routed_bytes"], experts["shared_bytes"]) == (routed, shared)
    assert experts["shared_fraction"] == pytest.approx(shared / (shared + routed))
    for row in experts["rows"]:
        assert row["distinct"] == pytest.approx(128 * (1 - (1 - 8 / 128) ** row["rows"]))
        assert row["most"] == min(8 * row["rows"], 128)
        assert row["bytes"] == pytest.approx(shared + routed / 8 * row["distinct"])
        assert row["amortisable"] == pytest.approx(1 - row["bytes"] / (row["rows"] * (shared + routed)))
    assert found["critical_batch_experts"] == pytest.approx(found["critical_batch"] * 16)
    wide = explain(mixture, "--hardware", "h100", "--kv-type", "f32")
    assert wide["kv"]["bytes_per_position"] == 2 * found["kv"]["bytes_per_position"] == 48 * 2 * 4 * 128 * 4
    assert any("uniformly" in text for text in found["assumptions"])
    shown = phaseline("explain", mixture, "--hardware", "h100")
    assert shown.returncode == 0 and "8 experts of 128" in shown.stdout and "saved by" in shown.stdout


def test_a_model_file_counts_as_it_is_stored(explain: Any, tiny: str) -> None:
    stored, priced = explain(tiny, "--hardware", "a100", "--context", "300"), explain(tiny, "--context", "300")
    decode = stored["steps"][1]
    assert decode["rows"] == 1 and stored["model"] == priced["model"]
    assert stored["shape"]["weight_bytes"] == sum(stored["model"]["weight_bytes"].values())
    weights = priced["phases"]["decode"]["weight_bytes"] - 64 * 4  # one row of the embedding is looked up
    assert decode["products_s"] == pytest.approx(weights / 2.039e12)
    assert explain(tiny, "--hardware", "a100", "--weight-bits", "8")["shape"]["weight_bytes"] == pytest.approx(
        stored["shape"]["weight_bytes"] / 4
    )
    wide = explain(tiny, "--hardware", "a100", "--kv-type", "f32", "--context", "300")
    assert wide["kv"]["bytes_per_stream"] == 2 * stored["kv"]["bytes_per_stream"]


def test_this_machine_is_measured(explain: Any, tiny: str) -> None:
    found = explain(tiny, "--hardware", "this", "--batch", "1", "--context", "100")
    peaks = found["hardware"]["peaks"]
    assert set(peaks) == {"f32", "quant"} and min(peaks.values()) > 0
    assert found["case"]["compute"] == "f32"  # the tiny model's weights are
    assert explain(tiny, "--hardware", "this", "--weight-bits", "4")["case"]["compute"] == "quant"
    assert found["hardware"]["bandwidth"] > 0 and found["hardware"]["memory"] > 0
    assert found["steps"][-1]["fits"] is True and found["hardware"]["attention"] == "f32"
    assert any("measured on this machine" in text for text in found["assumptions"])


def test_what_is_not_known_is_null(explain: Any, phaseline: Run) -> None:
    asked = ("--hardware", "h200", "--params", "7e9")
    found = explain(*asked)
    assert found["kv"] == {"bytes_per_position": None, "fixed_bytes": 0, "bytes_per_stream": None}
    assert found["largest_batch"] is None and found["experts"] is None
    assert {step["attention_s"] for step in found["steps"]} == {None}
    assert any("attention costs nothing" in text for text in found["assumptions"])
    shown = phaseline("explain", *asked).stdout
    assert "unknown" in shown and "largest batch" not in shown


def test_wider_keys_hold_fewer_elements(explain: Any) -> None:
    narrow, wide = explain(*QUIZ), explain(*QUIZ, "--kv-type", "f32")
    assert narrow["kv"] == wide["kv"]
    assert narrow["steps"][0]["attention_s"] == pytest.approx(2 * wide["steps"][0]["attention_s"], rel=0.05)


def test_memory_and_launch_bound_the_answer(explain: Any, phaseline: Run) -> None:
    tight = explain(*QUIZ, "--memory", "50GB", "--launch", "5")
    few, many = tight["steps"][1:]
    assert tight["largest_batch"] == 24 and (few["fits"], many["fits"]) == (True, False)
    assert (few["step_s"], few["launch_bound"]) == (5e-3, True)
    assert many["step_s"] > 5e-3 and many["launch_bound"] is False
    assert explain(*QUIZ, "--memory", "20GB")["largest_batch"] == 0
    assert "batch 4: at least 5 ms, launch-bound" in phaseline("explain", *QUIZ, "--launch", "5").stdout


def test_the_record_is_written(explain: Any, tmp_path: Path) -> None:
    out = tmp_path / "bounds.json"
    assert explain(*QUIZ, "--out", str(out)) == json.loads(out.read_text())


@pytest.fixture(scope="module")
def places(tiny: str, mixture: str, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """The files that the names in capitals stand for."""
    folder = tmp_path_factory.mktemp("configs")
    texts = {"GARBLED": "{", "LIST": "[]", "DEEP": "[" * 100_000, "HUGE": " " * 2**23}
    texts["UNKNOWN"] = '{"model_type": "mamba"}'
    for name, text in texts.items():
        (folder / f"{name}.json").write_text(text)
    return {"TINY": tiny, "MIXTURE": mixture, **{name: str(folder / f"{name}.json") for name in texts}}


REFUSED = [
    ("", "MODEL is missing"),
    ("kimi-k3", "the shape alone is known"),
    ("TINY --count 2", "--count needs --hardware"),
    ("TINY --kv-bytes-per-token 5", "--kv-bytes-per-token needs --hardware"),
    ("--params 7e9", "--params needs --hardware"),
    ("TINY --batch 1,2", "--batch 1,2: several need --hardware"),
    ("TINY --batch 1,two", "'1,two'"),
    ("--hardware h100", "MODEL, or --params"),
    ("TINY --hardware h100 --params 7e9", "not both"),
    ("TINY --hardware abacus", "'abacus'"),
    ("TINY --hardware h100 --count 0", "--count 0: "),
    ("TINY --hardware h100 --compute f32", "h100 has no peak for f32; it has bf16, fp8, int8"),
    ("TINY --hardware h100 --ops", "--ops"),
    ("TINY --hardware h100 --experts 8", "--experts belongs to --params"),
    ("TINY --hardware h100 --weight-bits 0", "--weight-bits 0: "),
    ("TINY --hardware h100 --context 1000000", "--context 1000000: it must be a whole number from 1 to 131072"),
    ("TINY --hardware h100 --batch 4,0", "batch = 0"),
    ("TINY --hardware h100 --chunk 0", "--chunk 0: "),
    ("TINY --hardware h100 --launch -1", "launch = -0.001"),
    ("TINY --hardware h100 --memory 0", "--memory 0: "),
    ("--hardware h100 --params nan", "--params nan: "),
    ("--hardware h100 --params lots", "'lots'"),
    ("missing.json --hardware h100", "missing.json"),
    ("missing.gguf --hardware h100", "missing.gguf"),
    ("GARBLED --hardware h100", "is not JSON"),
    ("DEEP --hardware h100", "is not JSON"),
    ("LIST --hardware h100", "no JSON object"),
    ("HUGE --hardware h100", "has more than the 4194304 bytes"),
    ("UNKNOWN --hardware h100", "model_type 'mamba' is not supported"),
    ("MIXTURE --hardware h100 --weight-bits inf", "--weight-bits inf: "),
    ("MIXTURE", "is part of a Hugging Face folder: name the folder"),
]


@pytest.mark.parametrize(("args", "said"), REFUSED, ids=[args for args, _ in REFUSED])
def test_what_is_refused_is_told_in_one_line(
    places: Mapping[str, str], capsys: pytest.CaptureFixture[str], args: str, said: str
) -> None:
    try:
        status: object = main(["explain", *(places.get(arg, arg) for arg in args.split())])
    except SystemExit as end:
        status = end.code
    output = capsys.readouterr()
    assert (status, output.out, output.err.count("\n")) == (2, "", 1)
    assert said in output.err


def test_a_model_known_by_name(explain: Any, phaseline: Run) -> None:
    asked = ("kimi-k3", "--hardware", "h200", "--count", "8", "--context", "131072", "--batch", "1")
    found = explain(*asked)
    assert found["steps"][1]["tok_s"] == pytest.approx(1104, rel=1e-3)
    shown = phaseline("explain", *asked).stdout
    assert "IQ1_S 532 GB" in shown and "434 MB whatever its length" in shown
