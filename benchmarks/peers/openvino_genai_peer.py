"""OpenVINO GenAI, which reads the same file."""

import time
from collections.abc import Sequence
from importlib.metadata import version

import numpy as np
import openvino
import openvino_genai
from serving import Generate, Times, serve


class Clock(openvino_genai.StreamerBase):
    """Notes when tokens come."""

    def __init__(self) -> None:
        super().__init__()
        self.start, self.times = time.perf_counter(), list[float]()

    def write(self, token: int | list[int]) -> openvino_genai.StreamingStatus:
        now = time.perf_counter() - self.start
        self.times += [now] * (len(token) if isinstance(token, list) else 1)
        return openvino_genai.StreamingStatus.RUNNING

    def end(self) -> None:
        pass


def load(model: str, threads: int, context: int) -> tuple[Generate, str]:
    pipeline = openvino_genai.LLMPipeline(model, "CPU", INFERENCE_NUM_THREADS=threads)

    def generate(prompt: Sequence[int], tokens: int) -> Times:
        config = openvino_genai.GenerationConfig(max_new_tokens=tokens, ignore_eos=True, do_sample=False)
        clock = Clock()
        pipeline.generate(openvino.Tensor(np.array([prompt], np.int64)), config, clock)
        return clock.times

    return generate, f"openvino-genai {version('openvino-genai')}"


serve(load)
