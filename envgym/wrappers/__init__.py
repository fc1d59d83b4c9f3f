"""Wrappers around environments: limits, rewards, records, and the guard of the contract.

Every registered environment gets `MaxTurns` and `EpisodeGuard`; the others are put around it by hand, or in an
`EnvSpec` through `additional_wrappers`, with for example `TokenBudget.wrapper_spec(budget=4096)`. `terminated` and
`truncated` keep their meaning through any stack of them.
"""

from envgym.wrappers.guard import REWARD_TOLERANCE, EpisodeGuard
from envgym.wrappers.history_window import HistoryWindow
from envgym.wrappers.limits import Limit, MaxTurns, TimeLimit, TokenBudget, count_bytes
from envgym.wrappers.record_trajectory import RecordTrajectory, append_line
from envgym.wrappers.rewards import ComponentFilter, RewardScale
from envgym.wrappers.wrapper import TextWrapper, as_function, as_step

__all__ = [
    "REWARD_TOLERANCE",
    "ComponentFilter",
    "EpisodeGuard",
    "HistoryWindow",
    "Limit",
    "MaxTurns",
    "RecordTrajectory",
    "RewardScale",
    "TextWrapper",
    "TimeLimit",
    "TokenBudget",
    "append_line",
    "as_function",
    "as_step",
    "count_bytes",
]

# Gymnasium writes a wrapper's module into every EnvSpec: one name for all keeps specs free of how the files are cut.
for _wrapper in (
    ComponentFilter,
    EpisodeGuard,
    HistoryWindow,
    MaxTurns,
    RecordTrajectory,
    RewardScale,
    TimeLimit,
    TokenBudget,
):
    _wrapper.__module__ = __name__
