"""What ranks compute without an exchange; tests/ranks has the exchanges, between processes."""

from types import SimpleNamespace

import pytest

from ding_lite.ranks import Ranks


@pytest.mark.parametrize(("n", "size"), [(7, 3), (3, 7), (8, 4), (1, 1)])
def test_the_parts_of_all_ranks_are_the_whole_in_order_and_differ_by_one_at_most(n, size):
    parts = [range(n)[Ranks.slice_of(SimpleNamespace(rank=rank, size=size), n)] for rank in range(size)]
    assert [place for part in parts for place in part] == list(range(n))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
