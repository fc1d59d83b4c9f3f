"""Training runs: where environments, policy and learner are wired together."""

from envgym.training.run import export_run, train
from envgym.training.trainer import TrainResult

__all__ = ["TrainResult", "export_run", "train"]
