"""Shapes of models by name, for the paper calculator: their sizes are public, and nobody has them at hand."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from phaseline.lab.calculator import check_positive
from phaseline.lab.shapes import Shape, Weights

_IQ1_S, _Q8_0 = 50 / 256, 34 / 32  # bytes per weight: ggml's blocks of 256 in 50 bytes, and of 32 in 34
_K3_FILE = 553e9  # bytes of the file that the figures in docs/kimi-k3.md were measured with


def kimi_k3(*, kv_element_bytes: float = 2, weight_bits: float | None = None) -> Shape:
    """Kimi K3: 69 layers of Kimi delta attention, 24 of latent attention; 896 experts in a latent space, 16 a row.

    Routed experts count in IQ1_S and the head in Q8_0, as in the file of 553e9 bytes; what is left of it is spread
    evenly over all other weights. Or everything in `weight_bits` each.
    """
    check_positive(kv_element_bytes=kv_element_bytes, weight_bits=1 if weight_bits is None else weight_bits)
    width, heads, vocab = 7168, 96, 163_840
    delta_layers, latent_layers, sparse_layers, experts, active = 69, 24, 92, 896, 16
    inner = heads * 128  # of q, k, v, z, and of the values that the output takes
    delta = 5 * width * inner + 128 * (width + inner) + width * heads  # q k v z out; decay by way of 128; beta
    rank, pe, q_rank = 512, 64, 1536
    latent = q_rank * (width + heads * (128 + pe)) + width * (rank + pe) + 2 * heads * 128 * rank + 2 * width * inner
    space, expert_width = 3584, 3072
    shared = width * experts + 2 * width * space + 3 * width * 6144  # router, down and up, shared experts
    every = delta_layers * delta + latent_layers * latent + sparse_layers * shared + 3 * width * 33_792
    expert = sparse_layers * 3 * space * expert_width  # one expert, in all its layers
    table = vocab * width
    if weight_bits is None:
        routed, head = Weights(expert, expert * _IQ1_S), Weights(table, table * _Q8_0)
        size = (_K3_FILE - experts * routed.bytes - head.bytes) / (every + table)
        formats = {"IQ1_S": routed * experts, "Q8_0": head, "others": Weights(every + table, size * (every + table))}
        stored = (
            f"routed experts are in IQ1_S, the LM head is in Q8_0; all others share the rest of a file of "
            f"{_K3_FILE / 1e9:.0f} GB evenly ({8 * size:.2f} bits each)"
        )
    else:
        size = weight_bits / 8
        routed, head, formats = Weights(expert, expert * size), Weights(table, table * size), {}
        stored = f"weights are in {weight_bits:g} bits each"
    return Shape(
        name="kimi-k3",
        every_row=Weights(every, every * size),
        wanted=head,
        held=Weights(table, table * size),
        kv_bytes=latent_layers * (rank + pe) * kv_element_bytes,
        pair_flops=latent_layers * 2 * heads * (2 * rank + pe),
        prefill_pair_flops=latent_layers * 2 * heads * (128 + pe + 128),
        group=heads,
        prefill_group=1,
        expert=routed,
        experts=experts,
        active=active,
        stream_bytes=delta_layers * heads * 128 * 128 * 4,
        formats=MappingProxyType(formats),
        assumptions=(
            stored,
            "norms, biases, convolutions and the residual mix are left out, and the delta rule's own arithmetic",
            f"latent attention runs absorbed in decode and expanded (for free) in prefill; its rows take "
            f"{kv_element_bytes:g} bytes an element; the delta rule's state is float32, read and written by each step",
        ),
    )


KNOWN: Mapping[str, Callable[..., Shape]] = MappingProxyType({"kimi-k3": kimi_k3})
