"""From `env.step` to the gradient: which functions a token's record passes, and how much code that is.

`python tests/packaging/test_path.py` prints the count. The functions stand in the order in which what the environment
answered passes through them; docs/internals.md says what each hands on.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import threading
from itertools import groupby
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

PATH = (
    "wrappers.limits:MaxTurns.step",
    "wrappers.guard:EpisodeGuard.step",
    "wrappers.guard:reward_fields",
    "rollout.episode:_play_turns",
    "rollout.episode:_Record.ended",
    "rollout.episode:play_episode",
    "rollout.collector:_Run._play_once",
    "rollout.collector:_Run._work",
    "rollout.collector:_Run.collect",
    "rollout.collector:Collector.collect",
    "training.episodes:IterationEpisodes._play",
    "training.episodes:IterationEpisodes.collect",
    "training.trainer:Trainer._collect",
    "training.trainer:Trainer._update",
    "learner.learner:Learner.train_on",
    "learner.learner:Learner._distribute",
    "types:Trajectory.token_stream",
    "learner.batch:make_sample",
    "learner.batch:exchange_samples",
    "learner.batch:collate",
    "learner.batch:Batch.select",
    "learner.learner:Learner.score",
    "learner.learner:Learner._scores",
    "learner.learner:Learner._actor_forward",
    "learner.model:Actor.forward",
    "learner.model:Critic.forward",
    "learner.learner:Learner._score_values",
    "learner.learner:Learner.estimate",
    "learner.estimator:GAEEstimator.__call__",
    "learner.gae:decoupled_gae",
    "learner.gae:gae_advantages",
    "learner.gae:_gae",
    "learner.gae:_reverse_scan",
    "learner.gae:_following",
    "learner.whitening:whiten",
    "learner.learner:Learner._update",
    "learner.learner:Learner._policy_backward",
    "learner.losses:PPOClipLoss.__call__",
    "learner.losses:policy_loss",
    "learner.losses:aggregate",
    "learner.learner:Learner._policy_backward",
)
MOST_FILES, MOST_LINES = 14, 1500


def function(place: str) -> Any:
    module, _, name = place.partition(":")
    found: Any = importlib.import_module(f"envgym.{module}")
    for part in name.split("."):
        found = getattr(found, part)
    return inspect.unwrap(found)


def count() -> tuple[int, int, list[str]]:
    """Files and lines of the functions, and the files that the path comes back to."""
    lines = sum(len(inspect.getsourcelines(function(place))[0]) for place in set(PATH))
    files = [file for file, _ in groupby(place.partition(":")[0] for place in PATH)]
    again = {file for number, file in enumerate(files) if file in files[:number]}
    return len(set(files)), lines, sorted(again)


def test_the_path_is_short_and_comes_back_to_the_learner_only() -> None:
    files, lines, again = count()
    assert files <= MOST_FILES
    assert lines <= MOST_LINES
    assert again == ["learner.learner"]


def test_every_function_of_the_path_is_passed(tmp_path: Path) -> None:
    from tiny_runs import tiny

    from envgym.training import train

    passed: set[CodeType] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            passed.add(frame.f_code)

    config = tiny(tmp_path / "run", num_iterations=1, warm_start=None, kl=None, critic={"pretraining": None})
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        train(config, progress=False)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    assert [place for place in PATH if function(place).__code__ not in passed] == []


if __name__ == "__main__":
    print("{} files, {} lines, comes back to {}".format(*count()))
