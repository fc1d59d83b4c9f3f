"""Trains the quickstart's policy as SGLang serves it: python examples/train_sglang.py [RUN_DIR] [URL ...]

Without addresses each rank starts a server of its own (`envgym serve --install` first). Two ranks and two servers:
torchrun --nproc-per-node 2 examples/train_sglang.py [RUN_DIR] [URL URL]
"""

import sys

import envgym
from envgym.config import SGLangPolicyConfig
from envgym.training.recipes import quickstart

run_dir = sys.argv[1] if len(sys.argv) > 1 else "runs/train_sglang"
config = quickstart(run_dir).model_copy(update={"policy": SGLangPolicyConfig(urls=tuple(sys.argv[2:]))})

if __name__ == "__main__":
    result = envgym.train(config)
    print(f"sampled success: {result.before['sampled'].success:.2f} -> {result.after['sampled'].success:.2f}")
