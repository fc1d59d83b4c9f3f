"""A new environment in one file, registered and trained on: python examples/custom_environment.py [RUN_DIR]"""

import sys

import envgym
from envgym.agent import Player
from envgym.config import CriticConfig, EnvConfig, OptimizerConfig, RolloutConfig, WarmStartConfig


class Alphabet(envgym.TextEnv):
    system_prompt = "Name the next letter, five times."

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left, self.letter = 5, "abcdefgh"[self.np_random.integers(8)]
        return self.letter, {}

    def step(self, action):
        right, self.left = float(action == chr(ord(self.letter) + 1)), self.left - 1
        if not right or self.left == 0:
            return envgym.Step.terminal("end", {"right": right}, success=bool(right))
        self.letter = "abcdefgh"[self.np_random.integers(8)]
        return envgym.Step.running(self.letter, {"right": right})

    def demonstrator(self, rng):
        class Guesser(Player):
            def act(self, observation, info):
                return chr(ord(observation) + 1) if rng.random() < 0.7 else "bcdefghi"[rng.integers(8)]
        return Guesser()


envgym.register("mine/Alphabet-v0", Alphabet)
config = envgym.TrainConfig(
    run_dir=(sys.argv[1:] or ["runs/alphabet"])[0], env=EnvConfig(id="mine/Alphabet-v0"), num_iterations=15,
    torch_threads=1, rollout=RolloutConfig(max_turn_tokens=4), actor=OptimizerConfig(learning_rate=7e-4),
    warm_start=WarmStartConfig(num_episodes=2000, batch_episodes=8),
    critic=CriticConfig(optimizer=OptimizerConfig(learning_rate=2e-3)))
result = envgym.train(config)
print(f"success: {result.before['sampled'].success:.2f} -> {result.after['sampled'].success:.2f}")
