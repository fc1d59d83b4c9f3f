"""Training runs: where environments, policy and learner are wired together."""

from envgym.training.callbacks import Callback, RunState
from envgym.training.loggers import Logger
from envgym.training.run import export_run, train
from envgym.training.trainer import TrainResult

__all__ = ["Callback", "Logger", "RunState", "TrainResult", "export_run", "train"]
