"""Methods of a policy of one's own that return something else than a policy's are named."""

import pytest
from worlds import small_config

from ding_lite import PPOPolicy, SerialPipeline
from ding_lite.errors import ContractError


class NoLogProb(PPOPolicy):
    def _forward_collect(self, obs, state=None, first=None):
        return {"action": super()._forward_collect(obs)["action"]}


class OnlyTheAction(PPOPolicy):
    def _forward_collect(self, obs, state=None, first=None):
        return super()._forward_collect(obs)["action"]


class EmptyEvaluation(PPOPolicy):
    def _forward_eval(self, obs, state=None, first=None):
        return {"actions": 0}


class NothingReturned(PPOPolicy):
    def _get_train_sample(self, rollout):
        super()._get_train_sample(rollout)


class NoSuper(PPOPolicy):
    def _init_learn(self):
        self.own = 1


@pytest.mark.parametrize(
    ("policy", "told"),
    [
        (NoLogProb, r"no log_prob: NoLogProb\._forward_collect must return"),
        (OnlyTheAction, "_forward_collect must return a dict with the key 'action', got a Tensor"),
        (EmptyEvaluation, r"_forward_eval must return a dict .* got the keys \['actions'\]"),
        (NothingReturned, "_get_train_sample must return the rollout, got a NoneType"),
        (NoSuper, r"NoSuper\._init_learn must call super\(\)\._init_learn\(\)"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_method_that_returns_something_else_is_named(policy, told, tmp_path):
    config = small_config(policy={"type": policy, "eval": {"eval_freq": 1}})
    with pytest.raises(ContractError, match=told):
        list(SerialPipeline(config, folder=tmp_path / "run"))
