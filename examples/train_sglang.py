"""Trains the quickstart's policy as SGLang serves it: python examples/train_sglang.py [RUN_DIR] [URL ...]

Without addresses each rank starts a server of its own (`envgym serve --install` first). Two ranks and two servers:
torchrun --nproc-per-node 2 examples/train_sglang.py [RUN_DIR] [URL URL]
"""

import sys

import envgym
from envgym.config import (
    CriticConfig,
    EnvConfig,
    NewModel,
    OptimizerConfig,
    PolicyLossConfig,
    RolloutConfig,
    SGLangPolicyConfig,
    WarmStartConfig,
)

config = envgym.TrainConfig(
    run_dir=sys.argv[1] if len(sys.argv) > 1 else "runs/train_sglang",
    policy=SGLangPolicyConfig(urls=tuple(sys.argv[2:])),
    env=EnvConfig(id="envgym/PointerChase-v0"),
    model=NewModel(words=("get", "answer", "start")),
    warm_start=WarmStartConfig(num_episodes=5000, batch_episodes=8, learning_rate=4e-3),
    rollout=RolloutConfig(episodes_per_iteration=160, max_turn_tokens=16),
    actor=OptimizerConfig(learning_rate=7e-4),
    critic=CriticConfig(optimizer=OptimizerConfig(learning_rate=2e-3)),
    policy_loss=PolicyLossConfig(entropy_coefficient=0.01),
    num_iterations=30,
    torch_threads=1,
)

if __name__ == "__main__":
    result = envgym.train(config)
    print(f"sampled success: {result.before['sampled'].success:.2f} -> {result.after['sampled'].success:.2f}")
