"""vLLM's engine on the CPU, in bfloat16, without its server. It reads a Hugging Face folder."""

import os
import time
from collections.abc import Sequence
from itertools import count

from serving import Generate, Times, serve

os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}


def load(model: str, threads: int, context: int) -> tuple[Generate, str]:
    cores = sorted(os.sched_getaffinity(0))[:threads]
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, cores))  # before vLLM is imported
    import vllm

    asked = vllm.EngineArgs(model, dtype="bfloat16", max_model_len=context, enable_prefix_caching=False)
    engine, ids = vllm.LLMEngine.from_engine_args(asked), count()

    def generate(prompt: Sequence[int], tokens: int) -> Times:
        start, times = time.perf_counter(), list[float]()
        params = vllm.SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
        engine.add_request(str(next(ids)), {"prompt_token_ids": list(prompt)}, params)
        while engine.has_unfinished_requests():
            for output in engine.step():
                times += [time.perf_counter() - start] * (len(output.outputs[0].token_ids) - len(times))
        return times

    return generate, f"vllm {vllm.__version__}"


serve(load)
