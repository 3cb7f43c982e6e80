"""transformers on torch, in bfloat16: the same file's weights, decoded when they are loaded."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
import transformers
from serving import Generate, Times, serve, stamped


def load(model: str, threads: int, context: int) -> tuple[Generate, str]:
    torch.set_num_threads(threads)
    file = Path(model)
    net = transformers.AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.bfloat16, local_files_only=True
    ).eval()

    @torch.inference_mode()
    def answer(prompt: Sequence[int], tokens: int) -> Iterator[int]:
        rows, past = torch.tensor([list(prompt)]), transformers.DynamicCache()
        for _ in range(tokens):
            logits = net(rows, past_key_values=past, use_cache=True, logits_to_keep=1).logits
            rows = logits[:, -1].argmax(dim=-1, keepdim=True)
            yield int(rows)

    def generate(prompt: Sequence[int], tokens: int) -> Times:
        return stamped(answer(prompt, tokens))

    return generate, f"transformers {transformers.__version__}, torch {torch.__version__}"


serve(load)
