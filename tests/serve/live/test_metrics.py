"""/metrics: what known reports come to, in Prometheus's format."""

import asyncio
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from phaseline.engine.types import FinishReason
from phaseline.serve.live.metrics import BOUNDS, MODEL_LABELS
from phaseline.serve.live.telemetry import Telemetry
from phaseline.serve.process.messages import Failed, StepReport
from support.serve_story import MS, Story, step_report, tokens

MODEL = dict.fromkeys(MODEL_LABELS, "x")


def samples_of(story: Story, model: Mapping[str, str] = MODEL) -> dict[tuple[str, ...], float]:
    return read(story.metrics.text(model))


def read(text: str) -> dict[tuple[str, ...], float]:
    """Samples by name and label values, as another's parser has them; strict where that one is not."""
    assert text.endswith("\n") and "\n\n" not in text
    found: dict[tuple[str, ...], float] = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation and family.type in ("counter", "gauge", "histogram")
        for sample in family.samples:
            assert sample.name.startswith("phaseline_") and sample.name.startswith(family.name)
            key = (sample.name.removeprefix("phaseline_"), *sample.labels.values())
            assert key not in found, "the same sample twice"
            found[key] = sample.value
    return found


def buckets(samples: dict[tuple[str, ...], float], name: str, *labels: str) -> dict[float, float]:
    found = {key[-1]: value for key, value in samples.items() if key[:-1] == (f"{name}_bucket", *labels)}
    return {float(bound): value for bound, value in found.items()}


def test_nothing_has_happened() -> None:
    samples = samples_of(Story(), {})
    assert samples["prefill_tokens_total",] == samples["time_to_first_token_seconds_count",] == 0
    assert not any(name == "model_info" for name, *_ in samples)


def test_times_of_one_request() -> None:
    story = Story()
    story.arrive(100, "a", prompt=8)
    story.step(130, 10, prefill=[("a", 0, 6)])  # begins at 120
    story.step(150, 20, tokens("a", 1, cached=2), prefill=[("a", 6, 2)])
    story.step(154, 4, tokens("a", 2), decode=[("a", 0)])
    story.step(164, 10, tokens("a", 3, end=FinishReason.STOP), decode=[("a", 0)])
    samples = samples_of(story)
    expected = {
        "queue": 0.020,
        "time_to_first_token": 0.050,
        "inter_token": 0.014,
        "time_per_output_token": 0.007,
        "request": 0.064,
    }
    assert {name: samples[f"{name}_seconds_sum",] for name in expected} == pytest.approx(expected)
    assert samples["inter_token_seconds_count",] == 2
    assert samples["prefill_tokens_total",] == 8 and samples["decode_tokens_total",] == 2
    assert samples["prompt_tokens_total",] == 8 and samples["cached_prompt_tokens_total",] == 2
    assert samples["generated_tokens_total",] == 3
    assert samples["requests_ended_total", "stop"] == 1


class Client:
    """As much of an EngineClient as is watched."""

    def watch(self, callback: Callable[[StepReport], object], **_: Any) -> None:
        self.report = callback

    def catch_up(self) -> None: ...


def test_reports_do_not_wait_for_somebody_to_ask() -> None:
    client: Any = Client()
    telemetry = Telemetry(client)
    for at in range(1000):
        client.report(step_report(at, 1, decode=[("a", 0)]))
    assert read(telemetry.metrics.text({}))["decode_tokens_total",] > 900


def test_a_report_that_cannot_be_read_costs_no_other() -> None:
    faults = list[Any]()

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, told: faults.append(told["exception"]))
        client: Any = Client()
        telemetry = Telemetry(client)
        for at, failed in enumerate([[], None, [], []]):
            client.report(step_report(at, 1, decode=[("a", 0)], failed=failed))
        telemetry.read()
        assert read(telemetry.metrics.text({}))["decode_tokens_total",] == 3 and len(faults) == 1

    asyncio.run(main())


def test_steps_are_told_apart_by_phase() -> None:
    story = Story()
    story.step(10, 1.5, prefill=[("a", 0, 4)])
    story.step(20, 3, prefill=[("b", 0, 4)], decode=[("a", 0)])
    story.step(30, 0.5, decode=[("a", 0), ("b", 0)])
    story.step(1030, 0)  # idle
    samples = samples_of(story)
    assert {phase: samples["step_seconds_count", phase] for phase in ("prefill", "mixed", "decode")} == {
        "prefill": 1,
        "mixed": 1,
        "decode": 1,
    }
    assert samples["step_seconds_sum", "mixed"] == pytest.approx(0.003)


def test_a_bucket_holds_what_is_at_most_its_bound() -> None:
    story = Story()
    for took in (1.0, 1.1, 70_000):
        story.step(10, took, decode=[("a", 0)])
    held = buckets(samples_of(story), "step_seconds", "decode")
    assert held[0.001] == 1 and held[0.0015] == 2 and held[60.0] == 2 and held[float("inf")] == 3
    assert list(held) == [*BOUNDS, float("inf")] and list(held.values()) == sorted(held.values())


def test_several_tokens_at_once_share_their_gap() -> None:
    story = Story()
    story.arrive(0, "a")
    story.step(10, 1, tokens("a", 1))
    story.step(16, 1, tokens("a", 2, 3, 4), decode=[("a", 0)])
    held = buckets(samples_of(story), "inter_token_seconds")
    assert held[0.0015] == 0 and held[0.002] == 3


def test_each_completion_has_its_own_gaps_and_the_request_one_first_token() -> None:
    story = Story()
    story.arrive(0, "a", n=2)
    story.step(10, 1, tokens("a", 1), tokens("a", 1, index=1), prefill=[("a", 0, 8)])
    story.step(20, 1, tokens("a", 2), tokens("a", 2, index=1, end=FinishReason.LENGTH), decode=[("a", 0), ("a", 1)])
    assert "requests_ended_total" not in {name for name, *_ in samples_of(story)}
    story.step(30, 1, tokens("a", 3, end=FinishReason.STOP), decode=[("a", 0)])
    samples = samples_of(story)
    assert samples["time_to_first_token_seconds_count",] == 1 and samples["prompt_tokens_total",] == 8
    assert samples["inter_token_seconds_count",] == 3 and samples["request_seconds_count",] == 2
    assert samples["requests_ended_total", "stop"] == 1


def test_who_is_cut_off_has_no_time_of_its_own() -> None:
    story = Story()
    for request in "abc":
        story.arrive(0, request)
    story.step(10, 1, tokens("a", 1), tokens("b", end=FinishReason.ABORT))
    story.step(20, 1, tokens("a", 2, end=FinishReason.ABORT), failed=[Failed("c", "RequestError", "no")])
    samples = samples_of(story)
    assert samples["request_seconds_count",] == samples["time_per_output_token_seconds_count",] == 0
    assert samples["requests_ended_total", "abort"] == 2 and samples["requests_ended_total", "error"] == 1
    assert not list(story.lives)


def test_an_answer_of_one_token_has_no_time_per_token() -> None:
    story = Story()
    story.arrive(0, "a")
    story.step(10, 1, tokens("a", 1, end=FinishReason.LENGTH))
    samples = samples_of(story)
    assert samples["time_per_output_token_seconds_count",] == 0 and samples["request_seconds_count",] == 1


def test_gauges_are_of_the_last_report_and_counts_outlive_an_engine() -> None:
    story = Story()
    story.step(10, 1, running=3, waiting=2, queued_prefill_tokens=70, free_pages=[5, 0], preemptions=4)
    story.step(20, 1, running=1, waiting=1, queued_prefill_tokens=7, free_pages=[7, 2], preemptions=5)
    story.step(30, 1, running=1, free_pages=[7, 1], preemptions=2)  # another engine
    samples = samples_of(story)
    assert samples["requests_running",] == 1 and samples["requests_waiting",] == samples["prefill_tokens_queued",] == 0
    assert [samples["pages_used", group] for group in "01"] == [1, 1] and samples["pages", "0"] == 8
    assert samples["preemptions_total",] == 7


def test_a_lost_engine_takes_its_requests_with_it() -> None:
    story = Story()
    story.arrive(0, "a")
    for life in story.lives.lost(5 * MS):
        story.metrics.ended(life)
    assert samples_of(story)["requests_ended_total", "error"] == 1 and not list(story.lives)


def test_every_name_is_explained() -> None:
    names = [line.split()[2] for line in Story().metrics.text(MODEL).splitlines() if line.startswith("# TYPE")]
    told = (Path(__file__).parents[3] / "docs" / "serving.md").read_text(encoding="utf-8")
    assert len(names) > 15
    assert [name for name in names if not re.search(rf"^\| `{name}[`{{]", told, re.MULTILINE)] == []


def test_names_may_hold_anything() -> None:
    story = Story()
    name = 'a"b\\c\nd'
    assert samples_of(story, {**MODEL, "model": name})["model_info", name, *["x"] * (len(MODEL_LABELS) - 1)] == 1
    story.metrics.responded("/v1/models", 200)
    assert samples_of(story)["http_responses_total", "/v1/models", "200"] == 1
