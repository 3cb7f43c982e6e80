"""Hugging Face folders and split files through the command line: every command that takes a MODEL takes them."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from support.command import Run
from support.folders import llama_tensors, write_folder, write_tokenizer
from support.tiny import write_llama

VOCAB = 330  # rows of the embedding; the tokenizer has fewer tokens
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)
PROMPT = "the rain in the north"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """bf16, two shards, a tokenizer, a chat template."""
    path = tmp_path_factory.mktemp("folders") / "tiny-chat"
    write_folder(path, shards=2, tensors=llama_tensors(dtype="<u2", vocab=VOCAB), vocab_size=VOCAB)
    write_tokenizer(path, chat_template=TEMPLATE)
    return path


def record(phaseline: Run, *args: str) -> dict[str, Any]:
    done = phaseline(*args, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    return dict(json.loads(done.stdout))


def test_run_answers_from_a_folder(phaseline: Run, folder: Path) -> None:
    options = (PROMPT, "--max-tokens", "12", "--ignore-eos")
    done = phaseline("run", str(folder), *options)
    assert done.returncode == 0 and "output 12 (length)" in done.stderr
    found = record(phaseline, "run", str(folder), *options)
    assert found["text"] + "\n" == done.stdout
    assert found["model"]["file"] == "tiny-chat" and found["model"]["weight_bytes"].keys() == {"BF16"}
    assert found["model"]["file_bytes"] == sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    raw = record(phaseline, "run", str(folder), PROMPT, "--raw", "--max-tokens", "2")
    assert 0 < len(raw["prompt_token_ids"]) < len(found["prompt_token_ids"])  # the template is the folder's


def test_weights_are_held_as_asked(phaseline: Run, folder: Path) -> None:
    plain = record(phaseline, "run", str(folder), PROMPT, "--max-tokens", "4", "--ignore-eos")
    held = record(phaseline, "run", str(folder), PROMPT, "--max-tokens", "4", "--ignore-eos", "--weights", "q8_0")
    q8_0, bf16 = held["model"]["weight_bytes"]["Q8_0"], plain["model"]["weight_bytes"]["BF16"]
    assert 34 / 64 * 0.9 < q8_0 / bf16 < 34 / 64 * 1.1
    wrong = phaseline("run", str(folder), PROMPT, "--weights", "q3")
    assert wrong.returncode == 2 and "invalid choice: 'q3'" in wrong.stderr


def test_explain_prices_a_folder(phaseline: Run, folder: Path) -> None:
    plain = record(phaseline, "explain", str(folder))
    held = record(phaseline, "explain", str(folder), "--weights", "q8_0")
    assert plain["model"]["arch"] == held["model"]["arch"] == "llama"
    assert held["phases"]["decode"]["weight_bytes"] < 0.6 * plain["phases"]["decode"]["weight_bytes"]
    assert held["phases"]["decode"]["flops"] == plain["phases"]["decode"]["flops"]
    chip = record(phaseline, "explain", str(folder), "--hardware", "h100")
    assert chip["shape"]["weight_bytes"] == pytest.approx(2 * chip["shape"]["params"], rel=0.01)


def test_measure_measures_a_folder(phaseline: Run, folder: Path) -> None:
    found = record(phaseline, "measure", str(folder), "--repeats", "1", "--weights", "q8_0")
    assert "Q8_0" in found["model"]["weight_bytes"]


def test_the_lab_takes_a_folder(phaseline: Run, folder: Path) -> None:
    options = ("--lengths", "8,16", "--repeats", "1", "--seed", "1", "--weights", "bf16")
    found = record(phaseline, "lab", "prefill", str(folder), *options)
    assert found["model"]["file"] == "tiny-chat"


def test_chat_talks_with_a_folder(phaseline: Run, folder: Path) -> None:
    done = phaseline("chat", str(folder), "--max-tokens", "3", input="hello\n/stats\n/quit\n")
    assert done.returncode == 0 and "1 answer of" in done.stderr


def test_what_a_folder_lacks_is_told_in_one_line(phaseline: Run, folder: Path, tmp_path: Path) -> None:
    without = tmp_path / "m"
    shutil.copytree(folder, without)
    for name in ("tokenizer.json", "model-00002-of-00002.safetensors", "config.json"):
        (without / name).unlink()
        done = phaseline("run", str(without), PROMPT)
        assert done.returncode == 2 and done.stderr.count("\n") == 1 and name in done.stderr


def test_a_tokenizer_larger_than_the_model_is_refused(phaseline: Run, tmp_path: Path) -> None:
    path = write_folder(tmp_path / "m")  # 64 rows
    write_tokenizer(path)
    done = phaseline("run", str(path), PROMPT)
    assert done.returncode == 2 and "tokenizer.json: it has token ids up to" in done.stderr


def test_split_files_run_from_any_part(phaseline: Run, tmp_path: Path) -> None:
    whole = write_llama(tmp_path / "whole.gguf")
    write_llama(tmp_path / "tiny.gguf", part_tensors=8)
    options = (PROMPT, "--max-tokens", "6", "--ignore-eos")
    want = record(phaseline, "run", str(whole), *options)
    parts = sorted(tmp_path.glob("tiny-*.gguf"))
    for part in parts[::2]:
        found = record(phaseline, "run", str(part), *options)
        assert found["token_ids"] == want["token_ids"]
        assert found["model"]["file_bytes"] == sum(path.stat().st_size for path in parts)
    parts[1].unlink()
    done = phaseline("run", str(parts[0]), PROMPT)
    assert done.returncode == 2 and "tiny-00002-of-00003.gguf is missing" in done.stderr
