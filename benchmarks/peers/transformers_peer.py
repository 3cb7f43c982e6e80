"""transformers on torch, in bfloat16: the same file's weights, decoded when they are loaded.

Of a folder only the config.json counts: its model has random weights.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
import transformers
from serving import Generate, Times, serve, stamped


def load(model: str, threads: int, context: int) -> tuple[Generate, str]:
    torch.set_num_threads(threads)
    path, kind = Path(model), transformers.AutoModelForCausalLM
    if path.is_dir():
        config = transformers.AutoConfig.from_pretrained(path, local_files_only=True)
        net = kind.from_config(config, dtype=torch.bfloat16).eval()
    else:
        options = {"gguf_file": path.name, "dtype": torch.bfloat16, "local_files_only": True}
        net = kind.from_pretrained(path.parent, **options).eval()

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
