"""The memory behind the pages: a type for each group, cache lines, and whole pages copied."""

import numpy as np
import pytest

from phaseline.errors import CapacityError
from phaseline.program.state import PagedKV, Recurrent
from phaseline.state.pool import Pool

STATE = (PagedKV(2, 3, 8), Recurrent(2, (("state", (3, 5)), ("window", (7,))), every=32))


def test_each_group_has_its_type_and_every_array_begins_on_a_cache_line() -> None:
    for seed in range(8):
        pool = Pool(STATE, [4, 3 + seed], 32, [np.uint16, np.float32])
        keys_values, carried = pool.groups
        assert {name: (a.shape, a.dtype) for name, a in keys_values.items()} == dict.fromkeys(
            ("keys", "values"), ((4, 2, 32, 3, 8), np.dtype(np.uint16))
        )
        assert (carried["state"].shape, carried["window"].shape) == ((3 + seed, 2, 3, 5), (3 + seed, 2, 7))
        for array in (*keys_values.values(), *carried.values()):
            assert array.ctypes.data % 64 == 0 and array.flags.c_contiguous and not array.any()
        assert carried["state"].dtype == carried["window"].dtype == np.float32


def test_a_copied_page_is_that_page_in_every_array_of_its_group_alone() -> None:
    pool = Pool(STATE, [3, 3], 32, [np.float32, np.float32])
    for n, group in enumerate(pool.groups):
        for array in group.values():
            array[:] = np.arange(3).reshape(3, *(1,) * (array.ndim - 1)) + 10 * n
    pool.copy_pages([(1, 2, 0)])
    assert all((array[0] == 12).all() and (array[2] == 12).all() for array in pool.groups[1].values())
    assert all((array[0] == 0).all() for array in pool.groups[0].values())


def test_more_than_there_is_says_how_much_was_asked_for() -> None:
    with pytest.raises(CapacityError, match=r"[0-9]{6,}\.[0-9] GiB of state cannot be allocated; lower --context"):
        Pool(STATE, [4, 1 << 44], 32, [np.uint16, np.float32])
