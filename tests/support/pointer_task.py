"""The task `pointer`: name the number that is shown; the reward is minus the distance. Dense vectors are stored."""

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eigen_core.config import Config
from eigen_core.networks.encoders import FirstDay
from eigen_core.networks.layout import ParameterLayout, Parameters, linear, linear_shapes
from eigen_core.networks.policies import Box, Heads, SquashedGaussian, action_shapes, policy_of
from eigen_core.task.gymnasium import UniformSampler
from eigen_core.task.interface import Rollout, Task, Transitions
from eigen_core.task.replay import Column, Replay

_STEPS = 20
_SHOWN, _REWARD = Column(torch.float32, (1,)), Column(torch.float32)
_COLUMNS = {"shown": _SHOWN, "action": _SHOWN, "reward": _REWARD, "terminal": Column(torch.bool)}


def _layouts(config: Config, heads: Heads, box: Box) -> tuple[ParameterLayout, ParameterLayout]:
    width = config.network.head_width
    critic = linear_shapes("encoder", 1, width)
    for index in range(heads.critics):
        critic += linear_shapes(f"hidden{index}", width + heads.action_values, width)
        critic += linear_shapes(f"value{index}", width, 1)
    return ParameterLayout(tuple(critic)), ParameterLayout(tuple(action_shapes("action", width, box, heads)))


class PointerTask(Task[Tensor, Tensor]):
    training_starts, validation_starts, holdout_starts = range(1_000), range(1_000, 1_100), range(1_100, 1_200)

    def __init__(self, config: Config, data: object, device: torch.device, heads: Heads) -> None:  # noqa: ARG002
        self.box = Box([-1.0], [1.0], device, steepness=1.0)
        self.critic_layout, self.actor_layout = _layouts(config, heads, self.box)
        self.columns = _COLUMNS
        self.episode_steps = self.min_episode_steps = _STEPS
        self.episode_end = "terminal"
        self.state: Mapping[str, Tensor] = {}
        self.fingerprint = "pointer"
        self.block_bytes = self.play_bytes = 4 * _STEPS * config.network.head_width
        self._device = device
        self._heads = heads

    def noise_shape(self, episodes: int) -> tuple[int, ...]:
        return (episodes, _STEPS, 1)

    def roll_out(
        self,
        weights: Tensor,
        starts: NDArray[np.int64],
        noise: Tensor | None = None,
        record: bool = False,
        fixed: int = 0,
    ) -> Rollout:
        agents, episodes = starts.shape
        days = torch.tensor(starts, device=self._device)[..., None] + torch.arange(_STEPS, device=self._device)
        shown = torch.sin(days.float())[..., None].flatten(1, 2)
        critic = self.critic_layout.views(weights[:, : self.critic_layout.size])
        actor = self.actor_layout.views(weights[:, self.critic_layout.size :])
        policy = self.policy(actor, self.encode(critic, shown))
        played = policy.play(None if noise is None else noise.flatten(1, 2))
        rewards = -(played.actions - shown).abs()[..., 0]
        rows = None
        if record:
            stored = (episodes - fixed) * _STEPS
            terminal = (torch.arange(_STEPS) == _STEPS - 1).repeat(agents * (episodes - fixed))
            rows = {
                "shown": shown[:, :stored].flatten(0, 1),
                "action": played.stored[:, :stored].flatten(0, 1),
                "reward": rewards[:, :stored].flatten(),
                "terminal": terminal,
            }
        totals = rewards.double().reshape(agents, episodes, _STEPS).sum(-1).cpu().numpy()
        return Rollout(totals, {"distance": -totals.flatten() / _STEPS}, rows)

    def statistics(self, rollout: Rollout) -> dict[str, float]:
        return {"distance": float(rollout.counts["distance"].mean())}

    def sampler(self, replay: Replay, batch_size: int) -> UniformSampler:
        return UniformSampler(replay.size, batch_size)

    def transitions(self, replay: Replay, slots: Tensor, block: FirstDay) -> Transitions[Tensor]:  # noqa: ARG002
        rows, stretches = replay.pick(slots), replay.stretches(slots, self._heads.return_steps, self.episode_end)
        following = replay.pick((stretches.last + 1) % replay.size, "shown")["shown"]
        rewards = replay.pick(stretches.slots, "reward")["reward"] * stretches.mask
        terminal = replay.pick(stretches.last, "terminal")["terminal"]
        return Transitions(rows["shown"], following, rows["action"], rewards, stretches.steps, terminal)

    def encode(self, critic: Parameters, observations: Tensor) -> Tensor:
        return torch.relu(linear(critic, "encoder", observations))

    def policy(self, actor: Parameters, encoding: Tensor) -> SquashedGaussian:
        return policy_of(actor, "action", encoding, self.box, self._heads)

    def values(self, critic: Parameters, encoding: Tensor, actions: Tensor | None) -> Tensor:
        inputs = encoding if actions is None else torch.cat([encoding, actions], dim=-1)
        hidden = [torch.relu(linear(critic, f"hidden{index}", inputs)) for index in range(self._heads.critics)]
        return torch.stack([linear(critic, f"value{index}", one)[..., 0] for index, one in enumerate(hidden)])
