"""Super-blocks of 256 whose weights come by fours or eights, out of a codebook."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from phaseline.files.quant import codebooks
from phaseline.files.quant.base import Bytes, Floats, f16, low_first

_IQ2 = np.array([8, 25, 43], np.float32)
_IQ3_XXS = np.array([4, 12, 20, 28, 36, 44, 52, 62], np.float32)
_IQ3_S = np.array([1, 3, 5, 7, 9, 11, 13, 15], np.float32)
_IQ1 = np.array([-1, 0, 1], np.float32)


def iq2_xxs(b: Bytes) -> Floats:  # f16 factor; for each 32: four bytes of indices, four 7-bit signs and a 4-bit scale
    words = b[:, 2:].reshape(-1, 8, 8)
    signs, scale = _signs_and_scale(words[:, :, 4:])
    return _signed(_IQ2[codebooks.IQ2_XXS[words[:, :, :4]]], signs, f16(b[:, :2]) * scale * np.float32(0.25))


def iq2_xs(b: Bytes) -> Floats:  # f16 factor; 32 times a 9-bit index and a 7-bit sign; 16 4-bit scales
    words = np.ascontiguousarray(b[:, 2:66]).view("<u2")  # (blocks, 32)
    scale = f16(b[:, :2]) * (np.float32(0.5) + low_first(b[:, 66:], 4)) * np.float32(0.25)
    return _signed(_IQ2[codebooks.IQ2_XS[words & 511]], _even_signs(words >> 9), scale)


def iq2_s(b: Bytes) -> Floats:  # f16 factor; 32 low bytes of indices; 32 signs; 32 high pairs; 16 4-bit scales
    index = b[:, 2:34] | low_first(b[:, 66:74], 2).astype(np.uint16) << 8
    scale = f16(b[:, :2]) * (np.float32(0.5) + low_first(b[:, 74:], 4)) * np.float32(0.25)
    return _signed(_IQ2[codebooks.IQ2_S[index]], b[:, 34:66], scale)


def iq3_xxs(b: Bytes) -> Floats:  # f16 factor; 64 indices; for each 32 four 7-bit signs and a 4-bit scale
    signs, scale = _signs_and_scale(b[:, 66:].reshape(-1, 8, 4))
    return _signed(_IQ3_XXS[codebooks.IQ3_XXS[b[:, 2:66]]], signs, f16(b[:, :2]) * scale * np.float32(0.5))


def iq3_s(b: Bytes) -> Floats:  # f16 factor; 64 low bytes of indices; 64 high bits; 32 signs; 8 4-bit scales
    index = b[:, 2:66] | low_first(b[:, 66:74], 1).astype(np.uint16) << 8
    return _signed(_IQ3_S[codebooks.IQ3_S[index]], b[:, 74:106], f16(b[:, :2]) * (1 + 2 * low_first(b[:, 106:], 4)))


def iq1_s(b: Bytes) -> Floats:  # f16 factor; 32 low bytes of indices; for each 32 four high 3 bits, a scale, a shift
    high = np.ascontiguousarray(b[:, 34:]).view("<u2")  # (blocks, 8)
    index = b[:, 2:34] | (high[:, :, None] >> np.array([0, 3, 6, 9], np.uint16) & 7).reshape(-1, 32) << 8
    shift = np.where(high >> 15, np.float32(-0.125), np.float32(0.125))
    scale = f16(b[:, :2]) * (2 * (high >> 12 & 7) + 1)
    w: Floats = scale[:, :, None] * (_IQ1[codebooks.IQ1[index]].reshape(-1, 8, 32) + shift[:, :, None])
    return w.reshape(-1, 256)


def iq1_m(b: Bytes) -> Floats:
    """32 low bytes of indices; for each 3 high bits and a shift; four words of four 3-bit scales and 4 factor bits."""
    high = low_first(b[:, 32:48], 4)  # (blocks, 32)
    index = b[:, :32] | (high & 7).astype(np.uint16) << 8
    shift = np.where(high & 8, np.float32(-0.125), np.float32(0.125))
    words = np.ascontiguousarray(b[:, 48:]).view("<u2")  # (blocks, 4)
    factor = np.bitwise_or.reduce(words >> 12 << np.array([0, 4, 8, 12], np.uint16), axis=1, keepdims=True)
    small = (words[:, :, None] >> np.array([0, 3, 6, 9], np.uint16) & 7).reshape(-1, 16)
    scale = factor.view("<f2").astype(np.float32) * (2 * small + 1)  # (blocks, 16)
    w: Floats = scale[:, :, None] * (_IQ1[codebooks.IQ1[index]] + shift[:, :, None]).reshape(-1, 16, 16)
    return w.reshape(-1, 256)


def _signed(sizes: Floats, signs: Bytes, scale: Floats) -> Floats:
    """256 sizes in any grouping, one sign byte for each eight (lowest bit first, 1 is minus), scales of equal runs."""
    minus = np.unpackbits(np.ascontiguousarray(signs).reshape(len(signs), 32), axis=1, bitorder="little")
    w = np.where(minus, -sizes.reshape(-1, 256), sizes.reshape(-1, 256))
    return (scale[:, :, None] * w.reshape(*scale.shape, -1)).reshape(-1, 256)


def _even_signs(low: NDArray[Any]) -> Bytes:
    """The eighth sign is such that the number of minuses is even: seven bits -> eight."""
    odd = low ^ low >> 4
    odd ^= odd >> 2
    signs: Bytes = (low | (odd ^ odd >> 1) << 7).astype(np.uint8)
    return signs


def _signs_and_scale(raw: Bytes) -> tuple[Bytes, Floats]:
    """(blocks, 8, 4) bytes -> signs of 32 eights, (blocks, 8, 4), and 8 scales, (blocks, 8)."""
    words = np.ascontiguousarray(raw).view("<u4")  # (blocks, 8, 1)
    scale = (words[:, :, 0] >> 28).astype(np.float32) + np.float32(0.5)
    return _even_signs(words >> np.array([0, 7, 14, 21], np.uint32) & 127), scale
