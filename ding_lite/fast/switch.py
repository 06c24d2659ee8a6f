"""Decides which implementation acts, computes values, and takes gradients: NumPy, or torch.

    acting       NumPy, or torch, on a GPU as a CUDA graph
    values       NumPy, or torch
    gradients    closed form (in NumPy), compiled, autograd, or on a GPU autograd as a CUDA graph

Whether torch's gradients are compiled is ``learn.compile`` (``compiling.may_compile``). All implementations
give the same numbers within rounding. The NumPy implementations are for small networks of vectors and
indices on the CPU; ``numpy_model.find_numpy_model`` says for which layers. They replace the methods of this
library that are listed below. If a subclass, a model or an assignment overrides one of these methods, torch
runs.

A decision is made for acting when a rollout or an evaluation begins, for a gradient at its loss's first step
in a phase, and otherwise at every call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ding_lite.data.minibatches import Batch
from ding_lite.data.modes import CollectMode, EvalMode
from ding_lite.data.rollout import Rollout
from ding_lite.fast.acting import ActorCriticLike, GraphActing, NumpyActing, TorchActing
from ding_lite.fast.closed_form import ClosedForm
from ding_lite.fast.cuda_graphs import GraphPool
from ding_lite.fast.gradients import GradientFunction, Loss, TorchGradients
from ding_lite.fast.numpy_mlp import hooks_of
from ding_lite.fast.numpy_model import NumpyModel, find_numpy_model
from ding_lite.fast.numpy_network import NumpyNetwork
from ding_lite.models.actor_critic import VAC, ActorCritic, computes_jointly

# NumPy replaces methods of these classes only.
CLASSES = {"Policy", "ActorCriticPolicy", "PPOPolicy", "PPGPolicy", "ActorCritic", "VAC", "PPG"}
# The policy's methods that each implementation stands for. INPUTS: the model's input and output.
INPUTS = ("inputs", "scaled", "distribution", "on_device")
LATE_LOG_PROBS = ("_to_env", "_process_transition", "_get_train_sample")
VALUES_WHILE_ACTING = (
    *("_forward_collect", "_process_transition", "_get_train_sample"),
    *("credit", "rollout_values", "values", "in_chunks", "denormalized_values"),
)
PPO_GRADIENTS = (*INPUTS, "policy_loss", "value_loss", "_policy_term", "_value_term")
AUXILIARY_GRADIENTS = (*INPUTS, "auxiliary_loss")
# The model's methods that each network stands for.
MODEL = {
    "actor": ("compute_actor", "distribution"),
    "critic": ("compute_critic", "compute_actor_critic", "_value", "_shared_features"),
    "auxiliary": ("compute_auxiliary",),
}


def are_library_methods(thing: Any, names: Sequence[str]) -> bool:
    """Returns whether the methods ``names`` of an object are those of the ``CLASSES`` of this library."""
    return all(_is_library_method(thing, name) for name in names)


def _is_library_method(thing: Any, name: str) -> bool:
    method = getattr(thing, name, None)
    if getattr(method, "__self__", None) is not thing:
        return False
    function = getattr(method, "__func__", None)
    module = _module_of(function)
    while module.startswith("torch."):  # torch.no_grad() as a decorator
        function = getattr(function, "__wrapped__", None)
        module = _module_of(function)
    name_of_class = getattr(function, "__qualname__", "").partition(".")[0]
    return module.startswith("ding_lite.") and name_of_class in CLASSES


def _module_of(function: Any) -> str:
    """Returns the module that wrote a function; the ``__module__`` of a wrapper may be copied."""
    return str(getattr(function, "__globals__", {}).get("__name__", ""))


def _model_is_ours(model: ActorCritic, network: str) -> bool:
    """Returns whether the methods that a ``network`` of ``MODEL`` stands for are those of this library."""
    return are_library_methods(model, [name for name in MODEL[network] if hasattr(model, name)])


def has_hooks(model: nn.Module) -> bool:
    """Returns whether a layer has a hook, which a replay would not call."""
    return any(hooks_of(model.modules()))


def _is_own_norm(norm: Any) -> bool:
    """Returns whether the scale of observations is none, or this library's, which NumPy can compute."""
    return norm is None or _module_of(type(norm).__call__).startswith("ding_lite.")


class Switch:
    """Decides for one policy.

    Args:
        policy: an ``ActorCriticPolicy``.

    Attributes:
        use_numpy: False lets torch do everything.
    """

    def __init__(self, policy: ActorCriticLike) -> None:
        self.policy, self.use_numpy = policy, True
        self.graph_pool = GraphPool()
        self._numpy_model = NumpyModel()
        self._examined: ActorCritic | None = None  # the model that it was found in

    def numpy_model(self) -> NumpyModel:
        """Returns the NumPy form of the policy's model, found again if the model has changed."""
        model = self.policy.model
        if self._examined is not model or not self._numpy_model.is_form_of(model):
            self._examined, self._numpy_model = model, find_numpy_model(model)
        return self._numpy_model

    def acting(self) -> NumpyActing | TorchActing:
        """Returns the implementation that acts once."""
        policy = self.policy
        if self.use_numpy and _model_is_ours(policy.model, "actor"):
            actor = self.numpy_model().actor
            fits = actor is not None and actor.acts_faster() and _is_own_norm(policy.obs_norm)
            if actor is not None and fits and are_library_methods(policy, INPUTS):
                return NumpyActing(policy, actor)
        return TorchActing(policy)

    def acting_many_times(
        self, takers: Sequence[str] = ("_to_env", "_process_transition")
    ) -> NumpyActing | TorchActing | GraphActing:
        """Returns the implementation that acts in a rollout or an evaluation.

        Args:
            takers: the policy's methods that take its results. If one is not of this library, it may expect
                them on the policy's device, and there is no CUDA graph.
        """
        policy = self.policy
        captures = (
            policy.uses_cuda_graphs
            and _model_is_ours(policy.model, "actor")
            and are_library_methods(policy, (*INPUTS, *takers))
            and not has_hooks(policy.model)
        )
        return GraphActing(policy, self.graph_pool) if captures else self.acting()

    def rollout_mode(self, mode: CollectMode) -> CollectMode:
        """Returns the policy's own ``mode``, specialised for one rollout."""
        if not are_library_methods(self.policy, ("_forward_collect",)):
            return mode
        acting = self.acting_many_times()
        if isinstance(acting, NumpyActing) and are_library_methods(self.policy, LATE_LOG_PROBS):
            add_log_probs = acting.add_log_probs

            def get_train_sample(rollout: Rollout) -> Rollout:
                add_log_probs(rollout)
                return mode.get_train_sample(rollout)

            return mode._replace(forward=acting.sample_outputs, get_train_sample=get_train_sample)
        if not isinstance(acting, NumpyActing) and self._gives_values():
            return mode._replace(forward=acting.sample_with_values)
        return mode._replace(forward=acting.sample)

    def evaluation_mode(self, mode: EvalMode) -> EvalMode:
        """Returns the policy's own ``mode``, specialised for one evaluation."""
        if not are_library_methods(self.policy, ("_forward_eval",)):
            return mode
        return mode._replace(forward=self.acting_many_times(takers=("_to_env",)).greedy)

    def takes_acting_values(self) -> bool:
        """Returns whether values that were computed while acting may replace those of ``rollout_values``."""
        return are_library_methods(self.policy, VALUES_WHILE_ACTING)

    def _gives_values(self) -> bool:
        """Returns whether the network computes values while it acts, at little cost."""
        model = self.policy.model
        if not self.takes_acting_values():
            return False
        if isinstance(model, VAC) and model.critic_encoder is not None:
            return False
        return computes_jointly(model, "compute_actor_critic")

    def critic(self) -> Callable[[Any], Tensor]:
        """Returns the function that computes values (N,) of inputs, without gradient."""
        network, compute_critic = self._numpy_critic(), self.policy.model.compute_critic
        if network is None:
            return compute_critic

        def values(inputs: Any) -> Tensor:
            leaves = network.encoder.rows(Batch(obs=inputs))
            if not network.encoder.can_read(leaves):
                return compute_critic(inputs)
            with np.errstate(all="ignore"):  # the learner checks for non-finite numbers
                return torch.from_numpy(network.forward(leaves)[:, 0])

        return values

    def _numpy_critic(self) -> NumpyNetwork | None:
        if not self.use_numpy or not _model_is_ours(self.policy.model, "critic"):
            return None
        critic = self.numpy_model().critic
        return None if critic is None or critic.has_hooks() else critic


class PolicyGradients(TorchGradients):
    """The closed form if it is valid, else torch; for one optimiser.

    Args:
        switch: of the policy.
        parameters, compiled_size, captured_size: see :class:`~ding_lite.fast.gradients.TorchGradients`.
        closed_form: whether closed forms may be used.
    """

    def __init__(
        self,
        switch: Switch,
        parameters: Sequence[Tensor],
        compiled_size: int | None,
        captured_size: int | None,
        *,
        closed_form: bool,
    ) -> None:
        super().__init__(parameters, compiled_size, captured_size)
        self.switch = switch
        self.closed_form = closed_form
        self._form: ClosedForm | None = None

    def of(self, loss: Loss) -> GradientFunction:
        """Returns the function that computes the gradient of ``loss`` of the policy as it is now."""
        closed = self._closed(loss)
        return super().of(loss) if closed is None else closed

    def _captures(self) -> bool:
        return super()._captures() and not has_hooks(self.switch.policy.model)

    def name_of(self, loss: Loss) -> str:
        """Returns "closed form", or what torch's gradients are called."""
        return super().name_of(loss) if self._closed(loss) is None else "closed form"

    def _closed(self, loss: Loss) -> GradientFunction | None:
        policy = self.switch.policy
        name = getattr(loss, "__name__", "")
        if not (self.closed_form and self.switch.use_numpy and name in CLOSED_FORMS):
            return None
        known = CLOSED_FORMS[name]
        if loss != getattr(policy, name):
            return None
        if not are_library_methods(policy, (*known.methods, known.options, name)):
            return None
        if not all(_model_is_ours(policy.model, network) for network in known.networks):
            return None
        if torch.is_autocast_enabled("cpu"):
            return None
        form = self._current_form()
        if not form.covers(known.networks):
            return None
        options = getattr(policy, known.options)()  # last, since it waits for a device
        return None if options is None else known.gradient(form, known.networks, options)

    def _current_form(self) -> ClosedForm:
        """Returns the closed form for the model as it is now."""
        model = self.switch.numpy_model()
        if self._form is None or self._form.model is not model:
            self._form = ClosedForm(model, self.parameters)
        return self._form


class _Known(NamedTuple):
    """A loss whose gradient has a closed form.

    Attributes:
        networks: that compute it.
        methods: of the policy that the closed form stands for, beside the loss itself.
        options: the policy's method that returns the coefficients of the loss, or None if the closed form
            lacks one of its terms. One that is overridden speaks of another loss, as one of ``methods`` does.
        gradient: makes the gradient of a closed form, these networks and these coefficients.
    """

    networks: tuple[str, ...]
    methods: tuple[str, ...]
    options: str
    gradient: Callable[[ClosedForm, tuple[str, ...], Any], GradientFunction]


_OF_PPO = (PPO_GRADIENTS, "closed_form_options", ClosedForm.ppo)
CLOSED_FORMS = {  # by the name of the policy's method
    "loss": _Known(("actor", "critic"), *_OF_PPO),
    "actor_loss": _Known(("actor",), *_OF_PPO),
    "critic_loss": _Known(("critic",), *_OF_PPO),
    "checked_auxiliary_loss": _Known(
        ("actor", "critic", "auxiliary"),
        AUXILIARY_GRADIENTS,
        "auxiliary_closed_form_options",
        ClosedForm.auxiliary,
    ),
}
