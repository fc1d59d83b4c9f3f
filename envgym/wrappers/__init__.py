"""Wrappers around environments: limits, rewards, records, and the guard of the contract.

Every registered environment gets `MaxTurns` and `EpisodeGuard`; the others are put around it by hand, or in an
`EnvSpec` through `additional_wrappers`, with for example `TokenBudget.wrapper_spec(budget=4096)`. `terminated` and
`truncated` keep their meaning through any stack of them.
"""

from envgym.wrappers.component_filter import ComponentFilter
from envgym.wrappers.episode_guard import EpisodeGuard
from envgym.wrappers.history_window import HistoryWindow
from envgym.wrappers.limit import Limit
from envgym.wrappers.max_turns import MaxTurns
from envgym.wrappers.record_trajectory import RecordTrajectory, append_line
from envgym.wrappers.reward_scale import RewardScale
from envgym.wrappers.step_contract import (
    REWARD_TOLERANCE,
    flags_problem,
    info_problem,
    observation_problem,
    reset_problem,
    reward_problem,
    step_problem,
)
from envgym.wrappers.time_limit import TimeLimit
from envgym.wrappers.token_budget import TokenBudget, count_bytes
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
    "flags_problem",
    "info_problem",
    "observation_problem",
    "reset_problem",
    "reward_problem",
    "step_problem",
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
