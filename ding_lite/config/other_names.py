"""The words of other libraries for what a key of this one sets, for the messages about unknown keys.

They are those of Stable-Baselines3 (with sb3-contrib), CleanRL, TorchRL and RLlib, and of the PPG paper and
its implementations.
"""

from __future__ import annotations

# Words with the name of the key, or the end of its path where the name alone is not clear.
SYNONYMS = {
    # Rollouts and credit.
    "gamma": "discount_factor",
    "lambda": "gae_lambda",
    "lambda_": "gae_lambda",
    "lam": "gae_lambda",
    "lmbda": "gae_lambda",
    "n_steps": "n_sample",
    "num_steps": "n_sample",
    "nsteps": "n_sample",
    "rollout_length": "n_sample",
    "horizon": "n_sample",
    "frames_per_batch": "n_sample",
    "train_batch_size": "n_sample",
    "total_timesteps": "max_env_step",
    "total_frames": "max_env_step",
    "max_steps": "max_env_step",
    # Losses and optimiser.
    "lr": "learning_rate",
    "minibatch_size": "batch_size",
    "mini_batch_size": "batch_size",
    "sub_batch_size": "batch_size",
    "sgd_minibatch_size": "batch_size",
    "n_epochs": "epoch_per_collect",
    "num_epochs": "epoch_per_collect",
    "update_epochs": "epoch_per_collect",
    "ppo_epochs": "epoch_per_collect",
    "noptepochs": "epoch_per_collect",
    "num_sgd_iter": "epoch_per_collect",
    "optim_steps_per_batch": "epoch_per_collect",
    "ent_coef": "entropy_weight",
    "entropy_coef": "entropy_weight",
    "entropy_coeff": "entropy_weight",
    "entropy_bonus": "entropy_weight",
    "vf_coef": "value_weight",
    "value_coef": "value_weight",
    "critic_coef": "value_weight",
    "critic_coeff": "value_weight",
    "vf_loss_coeff": "value_weight",
    "clip_range": "clip_ratio",
    "clip_coef": "clip_ratio",
    "clip_epsilon": "clip_ratio",
    "clip_param": "clip_ratio",
    "cliprange": "clip_ratio",
    "eps_clip": "clip_ratio",
    "clip_range_vf": "value_clip",
    "clip_vloss": "value_clip",
    "clip_value": "value_clip",
    "vf_clip_param": "value_clip",
    "loss_critic_type": "value_loss",
    "kl_coeff": "kl_penalty",
    "dtarg": "desired_kl",
    "max_grad_norm": "grad_clip_value",
    "clip_grad_norm": "grad_clip_value",
    "clip_norm": "grad_clip_value",
    "grad_clip": "grad_clip_value",
    "normalize_advantage": "adv_norm",
    "norm_adv": "adv_norm",
    "average_gae": "adv_norm",
    "adv_norm_fullbatch": "adv_norm",
    "anneal_lr": "lr_schedule",
    "max_importance_ratio": "weight_bound",
    "compile_policy": "compile",
    # Scales.
    "norm_obs": "normalize.obs",
    "obs_norm": "normalize.obs",
    "normalize_obs": "normalize.obs",
    "normalize_observation": "normalize.obs",
    "norm_reward": "normalize.reward",
    "reward_norm": "normalize.reward",
    "normalize_reward": "normalize.reward",
    "clip_obs": "obs_clip",
    "clip_reward": "normalize.reward_clip",
    # Environments, evaluation and runs.
    "env": "env_id",
    "env_name": "env_id",
    "num_envs": "collector_env_num",
    "n_envs": "collector_env_num",
    "eval_env": "evaluator_env_num",
    "n_eval_episodes": "n_evaluator_episode",
    "num_workers": "worker_num",
    "num_collectors": "worker_num",
    "num_env_runners": "worker_num",
    "save_freq": "checkpoint.keep_freq",
    "save_interval": "checkpoint.freq",
    "save_trainer_interval": "checkpoint.freq",
    "log_interval": "logger.freq",
    "tensorboard_log": "logger.trackers",
    "tb_log_name": "exp_name",
    "track": "logger.trackers",
    "loggers": "logger.trackers",
    "wandb": "logger.trackers",
    "mlflow": "logger.trackers",
    "wandb_project_name": "logger.trackers",
    "wandb_entity": "logger.trackers",
    "callback": "hooks",
    "callbacks": "hooks",
    "policy_device": "policy.device",
    # Networks.
    "net_arch": "encoder_hidden_size_list",
    "num_cells": "encoder_hidden_size_list",
    "hidden_size": "encoder_hidden_size_list",
    "hidden_sizes": "encoder_hidden_size_list",
    "fcnet_hiddens": "encoder_hidden_size_list",
    "depth": "encoder_hidden_size_list",
    "activation_fn": "activation",
    "activation_class": "activation",
    "ortho_init": "model.init",
    "log_std_init": "initial_sigma_value",
    "squash_output": "box_distribution",
    "features_extractor_class": "model.encoder",
    "features_extractor_kwargs": "model.encoder",
    "share_features_extractor": "share_encoder",
    "lstm": "rnn",
    "use_lstm": "rnn",
    "recurrent": "rnn",
    "lstm_kwargs": "rnn",
    "lstm_hidden_size": "rnn_hidden_size",
    "hidden_state_size": "rnn_hidden_size",
    "rnn_size": "rnn_hidden_size",
    "n_lstm_layers": "rnn_layers",
    "max_seq_len": "sequence_length",
    "ref_model": "pretrained_model_path",
    "reference": "pretrained_model_path",
    "reference_policy": "pretrained_model_path",
    # PPG.
    "n_pi": "aux_freq",
    "n_iteration": "aux_freq",
    "e_pi": "actor_epoch_per_collect",
    "e_policy": "actor_epoch_per_collect",
    "e_v": "critic_epoch_per_collect",
    "v_value": "critic_epoch_per_collect",
    "e_aux": "aux_train_epoch",
    "e_auxiliary": "aux_train_epoch",
    "epochs_aux": "aux_train_epoch",
    "n_aux_epochs": "aux_train_epoch",
    "beta_clone": "aux_bc_weight",
    "beta_weight": "aux_bc_weight",
    "aux_lr": "aux_learning_rate",
    "num_aux_rollouts": "aux_batch_size",
}

# Added to the suggestion for a word whose value is another one here.
NOTES = {
    "n_steps": ": steps x environments",
    "num_steps": ": steps x environments",
    "nsteps": ": steps x environments",
    "rollout_length": ": steps x environments",
    "horizon": ": steps x environments",
    "max_steps": ": steps of the whole run",
    "anneal_lr": ": 'linear'",
    "vf_coef": ": as in CleanRL, and twice as much as in Stable-Baselines3",
    "adv_norm_fullbatch": ": 'batch'",
    "average_gae": ": True, 'batch' or False",
    "clip_vloss": ": the width of the clip, or None",
    "entropy_bonus": ": the weight, or 0",
    "net_arch": ": such as [64, 64]",
    "num_cells": ": such as [64, 64]",
    "hidden_size": ": such as [64, 64]",
    "depth": ": such as [64, 64]",
    "log_std_init": ": its exponential, such as 0.135 for -2",
    "squash_output": ": 'tanh_normal'",
    "ortho_init": ": 'orthogonal' or 'torch'",
    "eval_env": ": the environments of an evaluation are those of the section env",
    "lstm_kwargs": ": with rnn_hidden_size and rnn_layers beside it",
}

# Algorithms that other libraries have, and this one has not.
OTHER_ALGORITHMS = """
    a2c a3c acer acktr appo ars bc bcq c51 cql cqn ddpg dqn dreamer dreamerv3 espo gail grpo her impala iqn
    mappo marwil muzero ngu qmix qr_dqn qrdqn r2d2 r2d3 rainbow redq reinforce sac sql sqn td3 tqc trpo vpg
"""

# What the names of other libraries' policies are here.
OTHER_POLICIES = {
    "recurrentppo": "It is 'ppo' with policy.model.rnn='lstm'.",
    "maskableppo": "It is 'ppo': masks are the observation's key action_mask, or env.action_mask=info.",
    "mlppolicy": "It is 'ppo': the network follows from the observations.",
    "cnnpolicy": "It is 'ppo': the network follows from the observations.",
    "multiinputpolicy": "It is 'ppo': the network follows from the observations.",
    "mlplstmpolicy": "It is 'ppo' with policy.model.rnn='lstm'.",
}

_NO_GSDE = (
    "there is no state-dependent exploration; policy.model.sigma_type decides how far Box actions are spread"
)
_OWN_LOOP = "write the loop: for progress in SerialPipeline(config)"
_SAVED = "every run saves ckpt/last and ckpt/best; checkpoint.freq and checkpoint.keep_freq say how often"
_ADAM = "the optimiser is Adam; policy.learn.learning_rate and policy.learn.adam_eps are its settings"
_SEPARATE = (
    "policy.model.share_encoder=False, or policy.model.arch='dual' for PPG, gives the value network an "
    "encoder and a memory of its own"
)
_VIDEO = (
    'hooks=[{"type": "video", "freq": N}] records an evaluation episode every N env steps; '
    "`ding-lite eval RUN --video DIR` records episodes afterwards"
)
_INTRINSIC = "set policy.intrinsic.type='rnd'; its keys are then beside it: weight, discount_factor, ..."

# Words for what is decided here, or set by something other than a key.
ADVICE = {
    "use_sde": _NO_GSDE,
    "sde_sample_freq": _NO_GSDE,
    "use_expln": _NO_GSDE,
    "full_std": _NO_GSDE,
    "callback_on_new_best": _OWN_LOOP,
    "callback_after_eval": _OWN_LOOP,
    "save_path": _SAVED,
    "save_model": _SAVED,
    "name_prefix": _SAVED,
    "best_model_save_path": _SAVED,
    "save_vecnormalize": _SAVED,
    "save_replay_buffer": _SAVED,
    "log_path": _SAVED,
    "optimizer": _ADAM,
    "optimizer_class": _ADAM,
    "optimizer_kwargs": _ADAM,
    "shared_lstm": _SEPARATE,
    "enable_critic_lstm": _SEPARATE,
    "separate_losses": _SEPARATE,
    "capture_video": _VIDEO,
    "render": _VIDEO,
    "int_coef": _INTRINSIC,
    "ext_coef": _INTRINSIC,
    "int_gamma": _INTRINSIC,
    "update_proportion": _INTRINSIC,
    "num_iterations_obs_norm_init": "policy.normalize.obs_samples is the number of random steps",
    "policy_kwargs": "its entries are keys of policy.model, such as encoder_hidden_size_list and activation",
    "num_minibatches": "write the size of one: policy.learn.batch_size",
    "n_minibatch": "write the size of one: policy.learn.batch_size",
    "nminibatches": "write the size of one: policy.learn.batch_size",
    "num_iterations": "a run is limited by max_env_step; an iteration is policy.collect.n_sample of them",
    "num_updates": "a run is limited by max_env_step, or max_train_iter in optimiser steps",
    "rollout_buffer_class": "policy.on_policy=False keeps rollouts in a buffer (policy.other.replay_buffer)",
    "rollout_buffer_kwargs": "policy.on_policy=False keeps rollouts in a buffer (policy.other.replay_buffer)",
    "stats_window_size": "collect/episode_return is the mean of the last 100 episodes; episodes.csv has all",
    "verbose": "the option -q prints nothing; log.txt in the run's folder has everything",
    "progress_bar": "the option -q prints nothing; log.txt in the run's folder has everything",
    "reset_num_timesteps": "--resume continues a run, and --init-from begins one with the weights of another",
    "deterministic": "evaluations take the most likely actions; `ding-lite eval RUN --stochastic` samples",
    "torch_deterministic": "two runs with one seed are bit-identical on one machine as they are",
    "normalize_images": "uint8 pixels are divided by 255",
    "norm_obs_keys": "policy.normalize.obs scales every Box that is no image",
    "epsilon": "the clip is policy.learn.clip_ratio, and Adam's epsilon policy.learn.adam_eps",
    "frame_stack": "name a wrapper: env.wrappers=['frame_stack']; Atari's are in 'atari'",
    "frame_skip": "name a wrapper: env.wrappers=['max_and_skip']; Atari's are in 'atari'",
    "max_frames_per_traj": "name a wrapper: env.wrappers=[dict(type='time_limit', max_episode_steps=N)]",
    "max_episode_steps": "name a wrapper: env.wrappers=[dict(type='time_limit', max_episode_steps=N)]",
    "samples_mc_entropy": "entropies are computed, not sampled",
    "init_random_frames": "with policy.normalize.obs=True a run begins with policy.normalize.obs_samples "
    "random steps",
    "rpo_alpha": "robust policy optimisation is not built; override distribution() in a policy of your own",
}
