"""Agents of ours as models of Stable-Baselines3, which learn from the same batches with the same noise."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import cycle
from typing import Any, cast
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray
from stable_baselines3 import PPO, SAC, TD3
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.distributions import DiagGaussianDistribution, SquashedDiagGaussianDistribution
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from torch import Tensor, nn
from torch.distributions import Normal

from eigen_core.common.randomness import keyed_generator
from eigen_core.config import ActorCriticConfig, PpoConfig, SacConfig, Td3Config
from eigen_core.generation import TrainingState
from eigen_core.learning.base_learners import BatchPlan
from eigen_core.learning.interface import learner_settings
from eigen_core.learning.ppo import EpisodePlan
from eigen_core.networks.layout import Parameters
from eigen_core.networks.population import Population
from eigen_core.task.gymnasium_environment import open_environment

Layers = Mapping[str, Sequence[nn.Linear]]


Taught = dict[str, Tensor]
"""Parameters of an agent by our names, and means of our curves."""


def parameters_of(state: TrainingState, population: Population, agent: int) -> dict[str, Tensor]:
    tensors = population.tensors()
    found = {
        f"{bank}.{name}": view[0]
        for bank in ("weights", "targets")
        if bank in tensors
        for name, view in _views(state, tensors[bank], agent).items()
    }
    return found | {name: tensor[agent] for name, tensor in tensors.items() if name == "log_temperature"}


def td3(state: TrainingState, agent: int, plan: BatchPlan) -> Taught:
    learner = learner_settings(state.config, Td3Config)
    settings = {
        "buffer_size": 1,
        "tau": learner.tau,
        "policy_delay": learner.policy_delay,
        # Fractions of an action's range, which Stable-Baselines3 scales to [-1, 1].
        "target_policy_noise": 2.0 * learner.target_noise,
        "target_noise_clip": 2.0 * learner.target_noise_clip,
    }
    model = _model(TD3, state, **settings)
    weights, targets = (
        {**_critics(critic), **_layers("actor", "action", actor.mu)}
        for critic, actor in ((model.critic, model.actor), (model.critic_target, model.actor_target))
    )
    _put(weights, _views(state, state.population.weights, agent))
    _put(targets, _views(state, state.population.state["targets"], agent))
    model.replay_buffer = _Batches(model, state, agent, plan)
    draw = _drawn(state, agent, plan, "target noise")

    def noise(actions: Tensor, mean: float, deviation: float) -> Tensor:
        drawn = draw()
        assert drawn.shape == actions.shape
        return mean + deviation * drawn

    with patch.object(Tensor, "normal_", noise):
        model.train(plan.gradient_steps, learner.batch_size)
    found = model.logger.name_to_value
    curves = {"critic_loss": found["train/critic_loss"], "actor_loss": found["train/actor_loss"]}
    return _taken("weights", weights) | _taken("targets", targets) | _tensors(curves)


def sac(state: TrainingState, agent: int, plan: BatchPlan) -> Taught:
    learner = learner_settings(state.config, SacConfig)
    settings = {
        "buffer_size": 1,
        "tau": learner.tau,
        "ent_coef": f"auto_{learner.initial_temperature}",
        "target_entropy": learner.entropy_target * state.task.box.values,
    }
    model = _model(SAC, state, **settings)
    model.actor.action_dist.epsilon = 0.0
    # Their critics' loss has the factor 1/2 of the paper's equation 5: of half the gradient and half the epsilon Adam
    # makes the same step.
    for group in model.critic.optimizer.param_groups:
        group["eps"] /= 2.0
    hidden = _hidden("actor", model.actor.latent_pi)
    weights = {**_critics(model.critic), **hidden, "actor.action": [model.actor.mu, model.actor.log_std]}
    targets = _critics(model.critic_target)
    _put(weights, _views(state, state.population.weights, agent))
    _put(targets, _views(state, state.population.state["targets"], agent))
    model.replay_buffer = _Batches(model, state, agent, plan)
    with _gaussian_noise(*(_drawn(state, agent, plan, purpose) for purpose in ("actions", "next actions"))):
        model.train(plan.gradient_steps, learner.batch_size)
    found = model.logger.name_to_value
    curves = {
        "critic_loss": 2.0 * found["train/critic_loss"],
        "actor_loss": found["train/actor_loss"],
        "temperature": found["train/ent_coef"],
    }
    temperature = {"log_temperature": model.log_ent_coef.detach()}
    return _taken("weights", weights) | _taken("targets", targets) | temperature | _tensors(curves)


def ppo(state: TrainingState, agent: int, plan: EpisodePlan) -> Taught:
    learner, replay = learner_settings(state.config, PpoConfig), state.replay
    episodes = list(zip(plan.starts[agent], plan.lengths[agent], strict=True))
    slots = np.concatenate([np.arange(start, start + length) % replay.capacity for start, length in episodes])
    settings = {
        "n_steps": len(slots),
        "batch_size": len(slots),
        "n_epochs": plan.epochs,
        "clip_range": learner.clip_range,
        "gae_lambda": learner.gae_lambda,
        "ent_coef": learner.entropy_coefficient,
        # It stops beyond 1.5 times this.
        "target_kl": None if learner.kl_limit is None else learner.kl_limit / 1.5,
        # Ours learns values apart from actions, so that there is nothing to weigh.
        "vf_coef": 1.0,
        "max_grad_norm": learner.gradient_clip,
        "normalize_advantage": False,
    }
    model = _model(PPO, state, **settings)
    policy, extractor = model.policy, model.policy.mlp_extractor
    policy.action_dist = _BeforeSquashing(state.task.box.values, epsilon=0.0)
    weights = {
        **_hidden("critic0", extractor.value_net),
        "critic0.value": [policy.value_net],
        **_hidden("actor", extractor.policy_net),
        "actor.action": [policy.action_net],
    }
    views = _views(state, state.population.weights, agent)
    _put(weights, views)
    policy.log_std.data.copy_(views["actor.action.log_std"][0])
    generator = keyed_generator(state.config.seed, plan.generation, "train", agent, "minibatches")
    model.rollout_buffer = _Episodes(model, generator, plan.minibatches)
    model.rollout_buffer.fill(model, state, slots)
    model.train()
    found = model.logger.name_to_value
    curves = {
        "value_loss": found["train/value_loss"],
        "policy_loss": found["train/policy_gradient_loss"] + model.ent_coef * found["train/entropy_loss"],
        "entropy": -found["train/entropy_loss"],
        "clipped_share": found["train/clip_fraction"],
    }
    spread = {"weights.actor.action.log_std": policy.log_std.detach()}
    return _taken("weights", weights) | spread | _tensors(curves)


class _Batches:
    def __init__(self, model: Any, state: TrainingState, agent: int, plan: BatchPlan) -> None:
        self._model, self._state = model, state
        self._slots = iter(plan.slots[agent, :, 0])

    def sample(self, batch_size: int, env: object) -> ReplayBufferSamples:  # noqa: ARG002 - as it is called
        task = self._state.task
        batch = task.transitions(self._state.replay, next(self._slots)[None], 0)
        # Of a stochastic policy they are stored before squashing.
        actions = batch.actions if self._state.heads.spread == "none" else task.box.actions(batch.actions)
        scaled = torch.tensor(self._model.policy.scale_action(actions[0].numpy()))
        terminal, rewards = batch.terminal[0].float()[:, None], batch.rewards[0]
        return ReplayBufferSamples(batch.observations[0], scaled, batch.next_observations[0], terminal, rewards)


class _Episodes(RolloutBuffer):  # type: ignore[misc] # its types are not read
    advantages: NDArray[np.float32]

    def __init__(self, model: PPO, generator: np.random.Generator, minibatches: int) -> None:
        spaces = model.observation_space, model.action_space
        super().__init__(model.n_steps, *spaces, "cpu", model.gae_lambda, model.gamma)
        self._generator, self._minibatches = generator, minibatches

    @torch.no_grad()
    def fill(self, model: PPO, state: TrainingState, slots: NDArray[np.int64]) -> None:
        batch = state.task.transitions(state.replay, torch.tensor(slots)[None], 0)
        ends = state.replay.pick(torch.tensor(slots), "ends")["ends"]
        values, log_probs, _ = model.policy.evaluate_actions(batch.observations[0], batch.actions[0])
        # As `collect_rollouts` does where a time limit has ended an episode.
        following = model.policy.predict_values(batch.next_observations[0])[:, 0]
        rewards = batch.rewards[0, :, 0] + self.gamma * following * (ends & ~batch.terminal[0])
        starts = torch.cat([torch.ones(1, dtype=torch.bool), ends[:-1]])
        observations = batch.observations[0].reshape(-1, *self.obs_shape).numpy()
        actions = batch.actions[0].numpy()
        for row in range(len(slots)):
            scalars = rewards[row].numpy(), starts[row].numpy(), values[row], log_probs[row : row + 1]
            self.add(observations[row], actions[row], *scalars)
        self.compute_returns_and_advantage(torch.zeros(1), np.ones(1))
        self.advantages = (self.advantages - self.advantages.mean()) / self.advantages.std()
        for name in ("observations", "actions", "values", "log_probs", "advantages", "returns"):
            setattr(self, name, self.swap_and_flatten(getattr(self, name)))

    def get(self, batch_size: int | None = None) -> Iterator[Any]:  # noqa: ARG002 - as it is called
        for steps in np.array_split(self._generator.permutation(np.arange(self.buffer_size)), self._minibatches):
            yield self._get_samples(steps)


class _BeforeSquashing(SquashedDiagGaussianDistribution):  # type: ignore[misc] # its types are not read
    """Reads actions as numbers before squashing, whose entropy has a closed form."""

    def log_prob(self, actions: Tensor, gaussian_actions: Tensor | None = None) -> Tensor:
        assert gaussian_actions is None
        return cast(Tensor, super().log_prob(torch.tanh(actions), actions))

    def entropy(self) -> Tensor:
        return cast(Tensor, DiagGaussianDistribution.entropy(self))


def _model(kind: Any, state: TrainingState, **settings: Any) -> Any:
    network, learner = state.config.network, learner_settings(state.config, ActorCriticConfig)
    rates = [rate for name, rate in learner.model_dump().items() if name.endswith("learning_rate")]
    assert set(rates) == {learner.actor_learning_rate}
    policy = {
        "net_arch": [network.head_width] * network.head_layers,
        "activation_fn": nn.ReLU,
        "optimizer_class": torch.optim.AdamW,
        "optimizer_kwargs": {"weight_decay": learner.weight_decay},
    }
    known = {"gamma": learner.gamma, "learning_rate": learner.actor_learning_rate, "policy_kwargs": policy}
    model = kind("MlpPolicy", open_environment(state.config).make(), device="cpu", **{**known, **settings})
    model.set_logger(Logger(folder=None, output_formats=[]))
    return model


def _hidden(prefix: str, module: nn.Module) -> dict[str, list[nn.Linear]]:
    linears = [layer for layer in module.modules() if isinstance(layer, nn.Linear)]
    return {f"{prefix}.{index}": [layer] for index, layer in enumerate(linears)}


def _layers(prefix: str, last: str, module: nn.Module) -> dict[str, list[nn.Linear]]:
    layers = _hidden(prefix, module)
    _, output = layers.popitem()
    return {**layers, f"{prefix}.{last}": output}


def _critics(critic: Any) -> dict[str, list[nn.Linear]]:
    return {
        name: layer
        for index, network in enumerate(critic.q_networks)
        for name, layer in _layers(f"critic{index}", "value", network).items()
    }


def _tensors(curves: Mapping[str, float]) -> dict[str, Tensor]:
    return {name: torch.tensor(mean) for name, mean in curves.items()}


def _views(state: TrainingState, bank: Tensor, agent: int) -> Parameters:
    critic, row = state.task.critic_layout, bank[agent : agent + 1]
    views = critic.views(row[:, : critic.size])
    # SAC has no target actor.
    return views if row.shape[1] == critic.size else views | state.task.actor_layout.views(row[:, critic.size :])


@torch.no_grad()
def _put(layers: Layers, views: Parameters) -> None:
    for name, parts in layers.items():
        outputs = [part.out_features for part in parts]
        weights = torch.split(views[f"{name}.weight"][0], outputs, dim=1)
        biases = torch.split(views[f"{name}.bias"][0], outputs)
        for part, weight, bias in zip(parts, weights, biases, strict=True):
            part.weight.copy_(weight.T)
            part.bias.copy_(bias)


def _taken(prefix: str, layers: Layers) -> dict[str, Tensor]:
    found = {}
    for name, parts in layers.items():
        found[f"{prefix}.{name}.weight"] = torch.cat([part.weight.detach().T for part in parts], dim=1)
        found[f"{prefix}.{name}.bias"] = torch.cat([part.bias.detach() for part in parts])
    return found


def _drawn(state: TrainingState, agent: int, plan: BatchPlan, purpose: str) -> Callable[[], Tensor]:
    own, shape = plan.rows(slice(agent, agent + 1)), state.task.noise_shape(1)[2:]
    draw = own.noise(state.config.seed, purpose, shape, torch.device("cpu"))
    return lambda: draw(1)[0, 0, 0]


@contextmanager
def _gaussian_noise(*draws: Callable[[], Tensor]) -> Iterator[None]:
    """Let normal distributions draw from these by turns."""
    turns = cycle(draws)

    def sample(distribution: Normal) -> Tensor:
        return distribution.loc + distribution.scale * next(turns)()

    with patch.object(Normal, "rsample", sample):
        yield
