"""Teach a policy to balance a pole, by PPO of stable-baselines3. The library makes the optimizer
itself, so it gets a class: `optimizer_class=MendOptimizer.of(Adam, ...)`.

Together, any number of these, started at any time:

    python examples/train_rl.py --name a --listen 127.0.0.1:29600
    python examples/train_rl.py --name b --peers 127.0.0.1:29600

Two on this machine, with names and addresses that are found for them:

    mend run -n 2 -- python examples/train_rl.py
"""

import argparse
import json
import os
import zlib

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from torch.optim import Adam

from mend_optim import MendOptimizer

ENVIRONMENT, ROLLOUT, EPOCHS, BATCH = "CartPole-v1", 512, 8, 64
STEPS_PER_ROLLOUT = EPOCHS * ROLLOUT // BATCH  # of the optimizer


def evaluate(agent: PPO) -> float:
    """The mean reward in ten episodes: two learners with the same policy get the same."""
    with torch.random.fork_rng():
        torch.manual_seed(0)  # for the actions; the other seed is for the poles
        reward, _ = evaluate_policy(
            agent, make_vec_env(ENVIRONMENT, seed=0), n_eval_episodes=10, deterministic=False
        )
    return float(reward)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "--name",
        default=os.environ.get("MEND_NAME", "learner"),  # as `mend run` gives it
        help="this learner's, different from all others'",
    )
    parser.add_argument("--listen", help="host:port to serve on")
    parser.add_argument("--peers", default="", help="host:port,host:port,…")
    parser.add_argument(
        "--steps", type=int, default=20 * STEPS_PER_ROLLOUT, help="of the optimizer, in all"
    )
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    torch.set_num_threads(1)
    merged_adam = MendOptimizer.of(Adam, name=args.name, listen=args.listen, peers=args.peers)
    agent = PPO(
        "MlpPolicy",
        ENVIRONMENT,
        n_steps=ROLLOUT,
        n_epochs=EPOCHS,
        batch_size=BATCH,
        learning_rate=1e-3,
        seed=zlib.crc32(args.name.encode()),  # each learner plays episodes of its own
        device="cpu",
        policy_kwargs={
            "optimizer_class": merged_adam,
            "optimizer_kwargs": {"eps": 1e-5},  # as the library has it for a plain Adam
        },
    )
    optimizer = agent.policy.optimizer
    start = optimizer.join().position  # 0, or where the others are
    first_reward = evaluate(agent)
    agent.learn(max(0, args.steps - start) // STEPS_PER_ROLLOUT * ROLLOUT)
    finish = optimizer.finish()  # all learners end on one policy
    report = {
        "learner": optimizer.name,
        "digest": finish.digest,
        "tokens": dict(finish.tokens),
        "first_reward": first_reward,
        "reward": evaluate(agent),
    }
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
