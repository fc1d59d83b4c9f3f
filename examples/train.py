"""Trains a small tool-using policy from Python: python examples/train.py [RUN_DIR]

The same file trains on two FSDP ranks: torchrun --nproc-per-node 2 examples/train.py [RUN_DIR]
"""

import sys

import envgym
from envgym.config import (
    CriticConfig,
    EnvConfig,
    NewModel,
    OptimizerConfig,
    PPOClipLossConfig,
    RolloutConfig,
    WarmStartConfig,
)

config = envgym.TrainConfig(
    run_dir=sys.argv[1] if len(sys.argv) > 1 else "runs/train",
    env=EnvConfig(id="envgym/PointerChase-v0"),
    model=NewModel(hidden_size=64, num_layers=2, words=("get", "answer", "start")),
    warm_start=WarmStartConfig(num_episodes=5000, batch_episodes=8, learning_rate=4e-3),
    rollout=RolloutConfig(episodes_per_iteration=160, max_turn_tokens=16),
    actor=OptimizerConfig(learning_rate=7e-4),
    critic=CriticConfig(optimizer=OptimizerConfig(learning_rate=2e-3)),
    loss=PPOClipLossConfig(entropy_coefficient=0.01),
    num_iterations=30,
    torch_threads=1,
)

if __name__ == "__main__":
    result = envgym.train(config)
    for play in ("sampled", "greedy"):
        print(f"{play} success: {result.before[play].success:.2f} -> {result.after[play].success:.2f}")
    print(f"run folder: {result.run_dir}, model: {result.model_dir}")
