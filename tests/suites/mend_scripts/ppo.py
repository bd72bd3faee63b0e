"""PPO of stable-baselines3 on CartPole: learn, save, load, and learn again."""

from __future__ import annotations

from pathlib import Path

import gymnasium
from stable_baselines3 import PPO
from stable_baselines3.common.evaluation import evaluate_policy
from torch.optim import Adam

from .swap import Swap

STEPS = 512


def train(swap: Swap, folder: Path, seed: int) -> list[float]:
    env = gymnasium.make("CartPole-v1")
    model = PPO(
        "MlpPolicy",
        env,
        n_steps=256,
        n_epochs=4,
        seed=seed,
        device="cpu",
        # The library's own default for Adam, which it gives to no other class.
        policy_kwargs={"optimizer_class": swap.of(Adam), "optimizer_kwargs": {"eps": 1e-5}},
    )
    model.learn(STEPS)
    model.save(folder / "ppo")
    del model
    model = PPO.load(folder / "ppo", env, device="cpu")
    model.set_random_seed(seed)
    model.learn(STEPS, reset_num_timesteps=False)
    weights = [float(p.detach().double().sum()) for p in model.policy.parameters()]
    reward, _ = evaluate_policy(model, env, n_eval_episodes=2, warn=False)
    return [*weights, reward]
