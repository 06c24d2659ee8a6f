"""Faults that the sweep must find. Each fault replaces one text of the library.

Each text must occur exactly once in the package, which a test checks. A change of such a line must also
change the text here.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple


class Fault(NamedTuple):
    """A fault of the library, planted by replacing one text.

    Attributes:
        seed: of a case that shows it, which is tried first.
    """

    name: str
    text: str
    replacement: str
    seed: int = 0


FAULTS = (
    # Credit.
    Fault(
        "no gamma in delta",
        "delta = reward + gamma * next_value.masked_fill(terminated, 0.0) - value",
        "delta = reward + next_value.masked_fill(terminated, 0.0) - value",
    ),
    Fault(
        "the trace goes on after a truncation",
        "* (~done).to(reward.dtype)",
        "* (~terminated).to(reward.dtype)",
    ),
    Fault(
        "a termination has a future",
        "if self.cfg.learn.ignore_done:\n            terminated, truncated =",
        "if True:\n            terminated, truncated =",
    ),
    Fault(
        "a truncated step looks at the next episode",
        'following[final.t, final.env] = self.values(final.obs, final.get("memory"))',
        "pass",
    ),
    Fault(
        "the last row of a segment looks at another one",
        'next_obs = map_tree(lambda leaf: leaf[length::length].flatten(0, 1), fields["obs"])',
        'next_obs = map_tree(lambda leaf: leaf[length - 1 : -1 : length].flatten(0, 1), fields["obs"])',
        seed=1,
    ),
    Fault(
        "V-trace has a step's own weight in its advantage",
        "trace[:-1] *= weight[1:]",
        "trace *= weight",
        seed=1,
    ),
    Fault(
        "no weight in the targets of V-trace",
        "weighted = advantage if weight is None else weight * advantage",
        "weighted = advantage",
        seed=1,
    ),
    Fault("V-trace is not bounded at 1", "TRACE_BOUND = 1.0", "TRACE_BOUND = 9.0", seed=1),
    Fault(
        "targets of n steps run on after a truncation",
        "continues = ~(terminated | truncated)",
        "continues = ~terminated",
        seed=4,
    ),
    Fault(
        "values that have moved are not looked at",
        "is_newest = is_first and ratio is None and not values_moved",
        "is_newest = is_first and ratio is None",
        seed=2,
    ),
    Fault(
        "old advantages in every epoch",
        "if not self.cfg.recompute_adv:\n            credit |=",
        "if True:\n            credit |=",
        seed=1,
    ),
    # Scales.
    Fault(
        "rows that are not valid in the normalisation of advantages",
        "        fields = flat_at(fields, place)\n        adv_norm = self.cfg.learn.adv_norm\n"
        '        if adv_norm == "batch":\n',
        '        whole = fields["advantage"]\n        fields = flat_at(fields, place)\n'
        '        adv_norm = self.cfg.learn.adv_norm\n        if adv_norm == "batch":\n'
        "            std, mean = torch.std_mean(whole, correction=0)\n"
        '            fields["advantage"] = (fields["advantage"] - mean) / (std + 1e-8)\n'
        '        elif self.cfg.learn.adv_norm == "never":\n',
        seed=22,
    ),
    Fault(
        "the std of a sample in the normalisation of advantages",
        "torch.std_mean(advantage, -1, correction=0, keepdim=True)",
        "torch.std_mean(advantage, -1, correction=1, keepdim=True)",
        seed=1,
    ),
    Fault(
        "PopArt leaves the bias",
        "head.bias.mul_(old_std).add_(old_mean - mean).div_(std)",
        "head.bias.mul_(old_std).div_(std)",
    ),
    Fault(
        "rewards are scaled by the rollouts before their own",
        "        self._prepare_rollout(rollout)\n        return self._get_train_sample(rollout)",
        "        sample = self._get_train_sample(rollout)\n        self._prepare_rollout(rollout)\n"
        "        return sample",
        seed=1,
    ),
    Fault(
        "a rollout is twice in the reward's scale",
        "if mark is None or not bool((mark == self._mark).all()):",
        "if True:",
        seed=1,
    ),
    Fault("value_norm forgets nothing", "self.count *= self.decay", "self.count *= 1.0"),
    Fault(
        "the running return outlives its episode",
        "running = np.where(restarts[t], 0.0, running)",
        "running = np.where(restarts[t], running, running)",
        seed=4,
    ),
    Fault(
        "fillers in the reward's scale",
        "self.update(returns[valid])",
        "self.update(returns.flatten())",
        seed=1,
    ),
    Fault(
        "fillers in the observations' scale",
        "samples = leaf[valid].cpu().numpy()",
        "samples = leaf[valid | True].cpu().numpy()",
        seed=1,
    ),
    # Losses.
    Fault("the bounds of the ratio are swapped", "= advantage >= 0\n", "= advantage <= 0\n", seed=3),
    Fault(
        "the bounds of the ratio are swapped, in closed form",
        "np.where(advantage >= 0, np.minimum(log_ratio",
        "np.where(advantage <= 0, np.minimum(log_ratio",
        seed=2,
    ),
    Fault(
        "the dual clip holds where A > 0",
        "torch.log1p(clip), high_of_negative)",
        "high_of_negative, high_of_negative)",
        seed=3,
    ),
    Fault(
        "no dual clip, in closed form",
        "math.log(options.dual_clip)",
        "math.inf",
        seed=2,
    ),
    Fault(
        "the value clip is around the new value",
        "clipped = old_value + torch.clamp(value - old_value, -bound, bound)",
        "clipped = value + torch.clamp(old_value - value, -bound, bound)",
        seed=2,
    ),
    Fault(
        "the value clip stops all that is outside of it, in closed form",
        "slope = np.where((far_error > error) & (np.abs(shift) > clip), np.float32(0), slope)",
        "slope = np.where(np.abs(shift) > clip, np.float32(0), slope)",
        seed=38,
    ),
    Fault(
        "no weight of stale samples",
        'self._proximal = {"log_prob": log_prob, "policy_weight": weight}',
        'self._proximal = {"log_prob": log_prob}',
        seed=1,
    ),
    Fault(
        "no bound of the weight of stale samples",
        "weight = self._ratio.clamp(max=learn.weight_bound)",
        "weight = self._ratio",
        seed=1,
    ),
    Fault(
        "the policy's gradient in closed form without the weight",
        "objective, slope = objective * weight, slope * weight",
        "objective = objective * weight",
        seed=1,
    ),
    Fault(
        "the entropy bonus is a malus",
        "return policy_loss - self.entropy_weight * entropy, metrics | {",
        "return policy_loss + self.entropy_weight * entropy, metrics | {",
    ),
    Fault(
        "the entropy bonus is a malus, in closed form",
        "result.backward(slope, -entropy_weight, tape.memory.log_sigma)",
        "result.backward(slope, entropy_weight, tape.memory.log_sigma)",
        seed=1,
    ),
    Fault(
        "no mask in the loss",
        "batch.with_outputs(dist=self.distribution(batch.obs, logit), new_value=value)",
        "batch.with_outputs(dist=self.model.distribution(logit), new_value=value)",
    ),
    Fault(
        "no mask in the loss, in closed form",
        'actor.distribution.evaluate(outputs[-1], mask, batch.array("action"))',
        'actor.distribution.evaluate(outputs[-1], None, batch.array("action"))',
        seed=1,
    ),
    Fault(
        "the value trains the encoder of a detached network, in closed form",
        "critic._replace(is_detached=True)",
        "critic",
        seed=6,
    ),
    Fault(
        "the KL of the auxiliary phase goes the other way, in closed form",
        "(probs - old_probs) * np.float32(of_kl)",
        "(old_probs - probs) * np.float32(of_kl)",
        seed=38,
    ),
    Fault(
        "no weight of the value in the auxiliary phase, in closed form",
        "regress(model.critic, options.value_weight)",
        "regress(model.critic, 1.0)",
        seed=7,
    ),
    Fault(
        "the straight part of smooth L1 is a parabola, in closed form",
        "return error, np.minimum(np.maximum(difference, -1), 1)",
        "return error, difference",
        seed=1,
    ),
    Fault(
        "the squash has no density",
        "return super().log_prob(action) - self._log_det(action)",
        "return super().log_prob(action)",
        seed=12,
    ),
    # Steps.
    Fault("Adam's eps inside of the root", "            eps=self.eps,\n", "            eps=self.eps**0.5,\n"),
    Fault(
        "a gradient below the clip is blown up",
        "scale = (clip.value / (norm + 1e-6)).clamp(max=1.0)",
        "scale = clip.value / (norm + 1e-6)",
        seed=11,
    ),
    Fault("log sigma leaves its range", "parameter.clamp_(low, high)", "pass", seed=31),
    Fault(
        "target_kl without its factor",
        'stopped = steps.mean_since(first, "approx_kl") > 1.5 * target_kl',
        'stopped = steps.mean_since(first, "approx_kl") > target_kl',
        seed=44,
    ),
    Fault(
        "a linear schedule goes to 0",
        "return 1.0 + (final - 1.0) * progress",
        "return 1.0 - progress",
        seed=1,
    ),
    # Replay.
    Fault(
        "samples leave one iteration too early",
        "fresh_enough = self.age <= self.limits.max_staleness",
        "fresh_enough = self.age <= max(self.limits.max_staleness - 1, 0)",
        seed=7,
    ),
    Fault(
        "a sample is drawn once more",
        "(self.uses < self.limits.max_use)",
        "(self.uses <= self.limits.max_use)",
        seed=9,
    ),
    Fault("a sample alone is a minibatch", "if rest == 1 and sizes:", "if rest == -1 and sizes:", seed=19),
    Fault(
        "importance weights upside down",
        "clamp_min(1e-12) ** -self.cfg",
        "clamp_min(1e-12) ** self.cfg",
        seed=1,
    ),
    Fault(
        "priorities are not renewed",
        "buffer.priority.view(-1)[place[index]] = self._priority(newest)",
        "self._priority(newest)",
        seed=1,
    ),
    # The auxiliary phase.
    Fault("the KL is reversed", '_loss": old.kl(new).mean()', '_loss": new.kl(old).mean()', seed=14),
    Fault(
        "the old policy is looked at after the first steps",
        "            for _ in range(learn.aux_train_epoch):\n",
        "            for _ in range(learn.aux_train_epoch):\n                old_logit = self.old_logits()\n",
        seed=2,
    ),
    Fault(
        "no mask in the KL",
        "old, new = (self.distribution(batch.obs, each) for each in (batch.old_logit, logit))",
        "old, new = (self.model.distribution(each) for each in (batch.old_logit, logit))",
        seed=2,
    ),
    Fault(
        "the auxiliary phase learns old targets",
        "            self.auxiliary.renew_targets(",
        "            (lambda buffer: None)(",
        seed=11,
    ),
    Fault(
        "the value's gradient reaches a detached encoder",
        "features = features.detach() if self.detaches_value else features",
        "features = features",
        seed=6,
    ),
    Fault(
        "the auxiliary head's weight is left at its old scale, and the value head's corrected twice",
        "head.weight.mul_(old_std / std)",
        "heads[0].weight.mul_(old_std / std)",
        seed=2,
    ),
)


def files_with(library: Path, text: str) -> list[Path]:
    """Returns the files of a package that contain a text, once for each occurrence."""
    return [path for path in sorted(library.rglob("*.py")) for _ in range(path.read_text().count(text))]


def plant(fault: Fault, library: Path, folder: Path) -> None:
    """Copies the package ``library`` into ``folder``, and plants a fault in the copy."""
    copy = folder / library.name
    shutil.copytree(library, copy)
    (path,) = files_with(copy, fault.text)
    path.write_text(path.read_text().replace(fault.text, fault.replacement))
