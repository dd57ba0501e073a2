"""Act with a checkpoint alone, as users of Stable-Baselines3 know it.

    lrl fit --config recipe:cartpole
    python examples/play_on.py runs/cartpole/version_0/checkpoints/best.ckpt [--episodes 3]

The same loop plays agents with memory, with action masks and with several actions at once.
"""

import argparse

import lrl


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoint")
    parser.add_argument("--episodes", type=int, default=3)
    args = parser.parse_args()

    policy = lrl.load_policy(args.checkpoint)
    env = policy.make_env()
    for seed in range(args.episodes):
        observation, info = env.reset(seed=seed)
        state, total, is_over = None, 0.0, False
        while not is_over:
            masks = info.get("action_mask")
            action, state = policy.predict(observation, state, action_masks=masks)
            observation, reward, terminated, truncated, info = env.step(action)
            total, is_over = total + reward, terminated or truncated
        print(f"episode {seed}: return {total:.1f}")
    env.close()


if __name__ == "__main__":
    main()
