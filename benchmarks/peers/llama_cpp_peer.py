"""llama.cpp built for this machine: `llama-cpp-python` from its sdist, by its C interface, without its Python loop."""

import ctypes
from collections.abc import Iterator, Sequence

import llama_cpp
import numpy as np
from serving import Generate, Times, serve, stamped


def load(model: str, threads: int, context: int) -> tuple[Generate, str]:
    llama = llama_cpp.Llama(
        model, n_ctx=context, n_batch=context, n_ubatch=512, n_threads=threads, n_threads_batch=threads, verbose=False
    )
    vocab = llama.n_vocab()

    def answer(prompt: Sequence[int], tokens: int) -> Iterator[int]:
        state = llama.ctx  # which lives as long as `llama` does
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(state), True)
        rows = list(prompt)
        for _ in range(tokens):
            array = (ctypes.c_int32 * len(rows))(*rows)
            failed = llama_cpp.llama_decode(state, llama_cpp.llama_batch_get_one(array, len(rows)))
            assert not failed, f"llama_decode returned {failed}"
            logits = llama_cpp.llama_get_logits_ith(state, -1)
            rows = [int(np.ctypeslib.as_array(logits, (vocab,)).argmax())]
            yield rows[0]

    def generate(prompt: Sequence[int], tokens: int) -> Times:
        return stamped(answer(prompt, tokens))

    system = llama_cpp.llama_print_system_info().decode()
    return generate, f"llama-cpp-python {llama_cpp.__version__}: {system}"


serve(load)
