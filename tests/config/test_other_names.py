"""The hyperparameters of other libraries: each word is answered with a key or with what takes its place."""

import re

import pytest

from ding_lite.config.compile import compile_config
from ding_lite.config.other_names import ADVICE, SYNONYMS
from ding_lite.config.schema import leaves
from ding_lite.errors import ConfigError

# The arguments of PPO, its policy, VecNormalize and the callbacks, without objects and internals.
STABLE_BASELINES3 = """
    env learning_rate n_steps batch_size n_epochs gamma gae_lambda clip_range clip_range_vf
    normalize_advantage ent_coef vf_coef max_grad_norm use_sde sde_sample_freq rollout_buffer_class
    rollout_buffer_kwargs target_kl stats_window_size tensorboard_log policy_kwargs verbose seed device
    lr_schedule net_arch activation_fn ortho_init log_std_init full_std use_expln squash_output
    features_extractor_class features_extractor_kwargs share_features_extractor normalize_images
    optimizer_class optimizer_kwargs lstm_hidden_size n_lstm_layers shared_lstm enable_critic_lstm
    lstm_kwargs norm_obs norm_reward clip_obs clip_reward norm_obs_keys total_timesteps callback log_interval
    tb_log_name reset_num_timesteps progress_bar n_eval_episodes eval_freq deterministic render save_freq
    save_path name_prefix best_model_save_path n_envs
"""
# The arguments of ppo*.py, ppg_procgen.py and ppo_rnd_envpool.py.
CLEANRL = """
    exp_name seed torch_deterministic cuda track wandb_project_name wandb_entity capture_video save_model
    env_id total_timesteps learning_rate num_envs num_steps anneal_lr gamma gae_lambda num_minibatches
    update_epochs norm_adv clip_coef clip_vloss ent_coef vf_coef max_grad_norm target_kl batch_size
    minibatch_size num_iterations rpo_alpha n_iteration e_policy v_value e_auxiliary beta_clone
    num_aux_rollouts adv_norm_fullbatch update_proportion int_coef ext_coef int_gamma
    num_iterations_obs_norm_init
"""
# The arguments of the PPO losses, GAE, collectors, networks and the trainer, and the keys of the examples.
TORCHRL = """
    clip_epsilon entropy_bonus samples_mc_entropy entropy_coeff entropy_coef critic_coeff critic_coef
    loss_critic_type normalize_advantage gamma separate_losses clip_value max_importance_ratio dtarg lmbda
    average_gae frames_per_batch total_frames max_frames_per_traj init_random_frames num_collectors
    compile_policy depth num_cells activation_class frame_skip optim_steps_per_batch optimizer clip_grad_norm
    clip_norm log_interval save_trainer_interval num_epochs mini_batch_size sub_batch_size env_name lr
    policy_device device weight_decay
"""
WORDS = sorted(set((STABLE_BASELINES3 + CLEANRL + TORCHRL).split()))
KNOWN_AT_THE_TOP = {"exp_name", "seed", "env"}  # keys or sections here, too
PPG_ONLY = {word for word, key in SYNONYMS.items() if key.startswith(("aux_", "actor_epoch", "critic_epoch"))}


def keys_of(policy):
    config = compile_config({"env": {"env_id": "CartPole-v1"}, "policy": {"type": policy}})
    return {path for path, _ in leaves(config.values)}


@pytest.fixture(scope="module")
def keys():
    return keys_of("ppo_offpolicy") | keys_of("ppo") | keys_of("ppg")


def message_about(word, policy="ppo"):
    config = {"env": {"env_id": "CartPole-v1"}, "policy": {"type": policy}, word: "?"}
    with pytest.raises(ConfigError) as caught:
        compile_config(config)
    return str(caught.value).partition("; ")[2]


@pytest.mark.parametrize("word", [word for word in WORDS if word not in KNOWN_AT_THE_TOP | PPG_ONLY])
def test_a_word_of_another_library_is_answered(word, keys):
    answer = message_about(word)
    if answer == ADVICE.get(word):
        return
    (path,) = re.findall(r"exists at ([\w.]+)", answer)
    assert path in keys | {"policy.learn.weight_decay"}  # the latter is refused with its reason


@pytest.mark.parametrize("word", [*sorted(PPG_ONLY), "n_epochs"])
def test_a_word_about_ppg_is_answered_by_ppg(word):
    assert f"{SYNONYMS[word]}' exists at policy.learn." in message_about(word, "ppg")


def test_advice_names_keys_that_exist(keys):
    named = {key for text in ADVICE.values() for key in re.findall(r"\bpolicy\.[\w.]*\w", text)}
    assert len(named) > 10
    sections = {path.rpartition(".")[0] for path in keys}
    assert named - keys - sections <= {
        f"policy.{key}" for key in ("intrinsic.type", "model.share_encoder", "model.arch")
    }


def test_an_invented_word_is_not_answered():
    assert message_about("qqqqqq").startswith("known here: ")


@pytest.mark.parametrize("written", [{"normalize": True}, {"policy": {"type": "ppo", "normalize": True}}])
def test_a_value_for_a_whole_section_names_the_keys_that_take_it(written):
    with pytest.raises(ConfigError) as caught:
        compile_config({"env": {"env_id": "CartPole-v1"}, **written})
    assert str(caught.value).endswith("write policy.normalize.obs=True or policy.normalize.reward=True")
