"""What ranks compute without an exchange; tests/ranks has the exchanges, between processes."""

from types import SimpleNamespace

import pytest

from ding_lite import compile_config
from ding_lite.errors import ConfigError
from ding_lite.ranks import Ranks
from ding_lite.run.build import own_share


@pytest.mark.parametrize(("n", "size"), [(7, 3), (3, 7), (8, 4), (1, 1)])
def test_the_parts_of_all_ranks_are_the_whole_in_order_and_differ_by_one_at_most(n, size):
    parts = [range(n)[Ranks.slice_of(SimpleNamespace(rank=rank, size=size), n)] for rank in range(size)]
    assert [place for part in parts for place in part] == list(range(n))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_numbers_that_ranks_cannot_share_are_refused():
    env = {"env_id": "CartPole-v1", "collector_env_num": 8, "greedy_env_num": 7}
    config = compile_config({"env": env}).values
    # By two, one would have greedy ones only.
    for ranks, text in ((3, "collector_env_num: 8"), (2, "greedy_env_num: 7")):
        with pytest.raises(ConfigError, match=f"{text} cannot be divided by {ranks} ranks"):
            own_share(config, SimpleNamespace(size=ranks))


def test_an_argument_of_an_environment_may_hide_a_method_of_the_config():
    config = compile_config({"env": {"env_id": "CartPole-v1", "kwargs": {"items": 3}}}).values
    own = own_share(config, SimpleNamespace(size=2, slice_of=lambda n: slice(0, n // 2)))
    assert (own.env.collector_env_num, config.env.collector_env_num) == (4, 8)
    assert dict(own.env.kwargs) == {"items": 3}
