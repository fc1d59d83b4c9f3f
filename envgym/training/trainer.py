"""One training run on one rank: where environments, policy and learner are wired together."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from envgym.config import NewModel, TrainConfig
from envgym.engines import EngineSetup, make_engine
from envgym.engines.base import Engine
from envgym.engines.embedded.tiny_model import create_model
from envgym.evaluation.results import EnvironmentReport, summarise
from envgym.learner.batch import make_sample
from envgym.learner.checkpoint import export_model, load_newest, save_checkpoint
from envgym.learner.distributed import from_main, is_main, of_all_ranks, on_main
from envgym.learner.estimator import Estimator
from envgym.learner.learner import Learner, weights_dtype
from envgym.learner.losses import Loss
from envgym.model_folder import load_model, load_tokenizer
from envgym.rendering import make_renderer
from envgym.rollout.collector import EpisodeRequest
from envgym.rollout.stream import dropped_metrics, lag_metrics
from envgym.training.callbacks import Callback, RunState, load_state_dicts, state_dicts
from envgym.training.episodes import IterationEpisodes, Players, gather, make_env
from envgym.training.loggers import Logger, MetricsFile, TensorBoard
from envgym.training.run_folder import CHECKPOINTS, INITIAL_MODEL, MODEL, SERVERS, RunFolder
from envgym.training.warm_start import imitate_agent
from envgym.types import Trajectory

if TYPE_CHECKING:
    from envgym.training.progress import Phase, ProgressDisplay

_log = logging.getLogger(__name__)
_LARGE_MISMATCH = 0.05
"""Mean absolute difference of log-probabilities, in nats, that rounding does not explain."""
Reports = dict[str, EnvironmentReport]
"""Evaluation by kind of play: "sampled" and "greedy"."""


@dataclass(frozen=True, slots=True)
class TrainResult:
    """What a training run leaves behind.

    Attributes:
        run_dir: Config, metrics, trajectories, TensorBoard events and checkpoints.
        model_dir: The trained model in Hugging Face format.
        before: Evaluation after the warm start, before reinforcement learning.
        after: Evaluation of the trained policy on the same seeds.
        example: One episode of the trained policy.
        metrics: Metrics of the last iteration.
        stopped: Why a callback ended the run before its last iteration, or None.
    """

    run_dir: Path
    model_dir: Path
    before: Reports
    after: Reports
    example: Trajectory
    metrics: dict[str, float]
    stopped: str | None = None


class Trainer:
    """A training run on one rank; see `train`."""

    def __init__(
        self,
        config: TrainConfig,
        *,
        mesh: DeviceMesh,
        device: torch.device,
        display: ProgressDisplay,
        resume: bool,
        callbacks: Sequence[Callback] = (),
        loggers: Sequence[Logger] = (),
        loss: Loss | None = None,
        estimator: Estimator | None = None,
    ) -> None:
        self.config = config
        self.device = device
        self.display = display
        self.resume = resume
        self.state = RunState(config, dist.get_rank(), dist.get_world_size())
        self.callbacks = list(callbacks)
        self.loggers: list[Logger] = []
        self.pretraining = config.critic.pretraining is not None
        self.before: Reports = {}
        self.evaluated: int | None = None
        self.example: Trajectory | None = None
        if config.rollout.episodes_per_iteration < self.state.num_ranks:
            raise ValueError(
                f"rollout.episodes_per_iteration ({config.rollout.episodes_per_iteration}) is smaller than the number "
                f"of ranks ({self.state.num_ranks}); every rank needs an episode to collect"
            )
        # Before there is a run folder, so that the same command works once the mistake is corrected.
        make_env(config, config.env.max_turns).close()
        if not isinstance(config.model, NewModel):
            make_renderer(load_tokenizer(config.model.path), config.renderer)
        self._opened = ExitStack()
        try:
            # An error of the main rank, the only one that opens it, is raised on every rank.
            self.folder = on_main(lambda: RunFolder.reopen(config) if resume else RunFolder.create(config))
            if self.folder is not None:
                self._opened.callback(self.folder.close)
                self.loggers = [MetricsFile(config.run_dir), TensorBoard(config.run_dir), *loggers]
            for logger in self.loggers:
                if hasattr(logger, "close"):
                    self._opened.callback(logger.close)
            model_dir = self._model_folder()
            self.tokenizer = load_tokenizer(model_dir)
            self.renderer = make_renderer(self.tokenizer, config.renderer)
            # Before the learner is on the device: an engine that shares it measures how much memory is free.
            self.engine = self._engine(model_dir)
            self._opened.callback(self.engine.close)
            self.players = Players(config, self.engine.policy, self.renderer, self.state, self._opened)
            self.players.check_prompt()
            if self.engine.shares_memory:
                self.engine.sleep()
            lm = load_model(model_dir, weights_dtype(config))
            self.learner = Learner(lm, config, mesh=mesh, device=device, loss=loss, estimator=estimator)
        except BaseException:
            self.close()
            raise
        self.evaluation_envs = self.players.collector(config.evaluation.max_turns)

    # -- setting up ---------------------------------------------------------------------------------------------------

    def _model_folder(self) -> Path:
        model = self.config.model
        if not isinstance(model, NewModel):
            return model.path
        folder = self.config.run_dir / INITIAL_MODEL
        settings = model.model_dump(exclude={"kind"})
        on_main(lambda: folder.exists() or create_model(folder, seed=self.config.seed, **settings))
        return folder

    def _engine(self, model_dir: Path) -> Engine:
        rollout = self.config.rollout
        setup = EngineSetup(
            model_dir=model_dir,
            folder=self.config.run_dir / SERVERS,
            device=self.device,
            dtype=self.config.dtype,
            concurrency=rollout.concurrency,
            max_policy_lag=rollout.max_policy_lag,
            deterministic=rollout.deterministic,
            seed=self.config.seed,
        )
        return make_engine(self.config.policy, setup)

    def close(self) -> None:
        """Closes what was opened, the last first: episodes under way, environments, the engine, files."""
        self._opened.close()

    # -- the run ------------------------------------------------------------------------------------------------------

    def run(self) -> TrainResult:
        """Runs from the start, or from the newest checkpoint, to the end."""
        config, state = self.config, self.state
        if self.resume:
            self._restore()
        self._call("on_start")
        if not self.resume:
            self._begin()
        episodes = self._episodes(first=state.iteration + 1)
        with self.display.phase("training", config.num_iterations) as phase:
            phase.advance(state.iteration)
            while state.iteration < config.num_iterations and not self._stopping():
                state.iteration, state.metrics = state.iteration + 1, {}
                self._learn(episodes, phase)
                last = self._stopping() or state.iteration == config.num_iterations
                if last or (config.evaluation.every and state.iteration % config.evaluation.every == 0):
                    self._evaluate("evaluating")
                    last = self._stopping() or last
                self._log()
                if last or state.iteration % config.checkpoint.every == 0:
                    self._save()
        if self.evaluated != state.iteration:  # nothing was left to do, or it was asked to stop between iterations
            self._evaluate("evaluating")
        model_dir = export_model(config.run_dir / MODEL, self.learner, self.tokenizer)
        self._call("on_end")
        assert self.example is not None
        stopped = state.stop_reason if state.iteration < config.num_iterations else None
        return TrainResult(
            config.run_dir, model_dir, self.before, state.reports, self.example, state.metrics, stopped=stopped
        )

    def _learn(self, episodes: IterationEpisodes, phase: Phase) -> None:
        """One iteration: episodes are collected, the learner is updated with them and what samples with the learner."""
        state = self.state
        started = time.perf_counter()
        episodes_of_rank = self._collect(episodes)
        collected = time.perf_counter()
        self._call("on_collect")
        updating = time.perf_counter()
        self._update(episodes_of_rank)
        updated = time.perf_counter()
        self._sync(state.iteration)
        episodes.advance(state.iteration)
        state.metrics |= {
            "time/collect_s": collected - started,
            "time/update_s": updated - updating,
            "time/sync_s": time.perf_counter() - updated,
            "time/action_tokens_per_s": state.metrics["batch/action_tokens"] / (collected - started),
        }
        self._call("on_update")
        success = f"success {state.metrics['episode/success']:.2f}, " if "episode/success" in state.metrics else ""
        phase.advance(note=f"{success}return {state.metrics['episode/return']:.2f}")

    def _begin(self) -> None:
        """Warm start and first evaluation."""
        if self.config.warm_start is not None:
            self.state.metrics |= imitate_agent(self.config.warm_start, self.players, self.learner, self.display)
        self.learner.start_from_policy()
        self._sync(0)
        self._evaluate("evaluating before training")
        self.before = self.state.reports
        self._log()
        self._save()

    def _restore(self) -> None:
        """Learner, records, callbacks and loggers as they were at the newest checkpoint."""
        folder, needs = self.config.run_dir / CHECKPOINTS, ("before", "pretraining", "sizes")
        saved = load_newest(folder, self.learner, needs=needs, set_aside=True)
        if self.folder is not None:
            self.folder.rewind(saved["sizes"])
        load_state_dicts([*self.callbacks, *self.loggers], saved.get("extensions", {}), warn=is_main())
        self.before = {kind: EnvironmentReport(**report) for kind, report in saved["before"].items()}
        self.pretraining = saved["pretraining"]
        self.state.iteration = saved["learner"]["iteration"]
        self._sync(self.state.iteration)

    def _save(self) -> None:
        saved = {
            "before": {kind: report.as_dict() for kind, report in self.before.items()},
            "pretraining": self.pretraining,
            "sizes": {} if self.folder is None else self.folder.sizes(),
            "extensions": state_dicts([*self.callbacks, *self.loggers]),
        }
        iteration, keep = self.state.iteration, self.config.checkpoint.keep
        save_checkpoint(self.config.run_dir / CHECKPOINTS, self.learner, saved, iteration=iteration, keep=keep)
        self._call("on_checkpoint")

    def _log(self) -> None:
        for logger in self.loggers:
            logger.log(self.state.iteration, dict(self.state.metrics))

    def _call(self, station: str) -> None:
        for callback in self.callbacks:
            getattr(callback, station)(self.state)

    def _stopping(self) -> bool:
        """Whether a callback of any rank has asked for the end; a collective, so that all ranks end together."""
        reasons = of_all_ranks(self.state.stop_reason)
        self.state.stop_reason = next((reason for reason in reasons if reason is not None), None)
        return self.state.stop_reason is not None

    # -- its stations -------------------------------------------------------------------------------------------------

    def _episodes(self, *, first: int) -> IterationEpisodes:
        """This rank's share of the iterations from the first on."""
        episodes = IterationEpisodes(
            self.config,
            self.players.training_collector,
            self.players.agent(),
            first=first,
            indices=self.players.share(self.config.rollout.episodes_per_iteration),
            device=self.device,
            recover=(lambda iteration: self._sync(iteration - 1)) if self.engine.recoverable else None,
        )
        self._opened.callback(episodes.close)
        if first <= self.config.num_iterations:
            episodes.advance(first - 1)
        return episodes

    def _collect(self, episodes: IterationEpisodes) -> Sequence[tuple[int, Trajectory]]:
        """This rank's episodes, with their places in the global batch; those of all ranks are recorded and measured."""
        collected = episodes.collect(self.state.iteration)
        self.state.trajectories = collected.trajectories
        indexed = list(zip(episodes.indices, collected.trajectories, strict=True))
        finished, failed = gather(indexed, collected.failed)
        metrics: dict[str, float] = {}
        if self.folder is not None:
            self.folder.record([*finished, *failed])
            report = summarise(self.config.env.id, "policy", [*finished, *failed])
            lag = lag_metrics(finished, version=self.state.iteration - 1) | dropped_metrics(failed)
            metrics = {f"episode/{name}": value for name, value in report.metrics().items()}
            metrics |= {f"rollout/{name}": value for name, value in lag.items()}
        self.state.metrics |= from_main(metrics)
        return indexed

    def _update(self, indexed: Sequence[tuple[int, Trajectory]]) -> None:
        """Trains actor and critic, or the critic alone while it is pretrained."""
        if self.engine.shares_memory:
            self.engine.sleep()
            self.learner.move_to(self.device)
        state = self.state
        seed = self.config.seed * 1_000_003 + state.iteration
        samples = (make_sample(trajectory, index) for index, trajectory in indexed)
        state.metrics |= self.learner.train_on(samples, seed=seed, update_actor=not self.pretraining)
        if self.learner.critic is not None:
            state.metrics["critic/pretraining"] = float(self.pretraining)
        if is_main():
            _warn_of_mismatch(state.iteration, state.metrics)
        if self.pretraining:
            limits = self.config.critic.pretraining
            assert limits is not None
            explained = state.metrics["critic/explained_variance"]
            self.pretraining = state.iteration < limits.max_iterations and explained < limits.explained_variance

    def _sync(self, version: int) -> None:
        """Has the engine sample with the present weights; where memory is shared, the learner makes room for it."""
        cpu = torch.device("cpu")
        if self.engine.shares_memory:
            self.learner.move_to(cpu, but_actor=True)
            self.engine.wake()
        self.engine.sync(self.learner.actor.lm, version)
        if self.engine.shares_memory:
            self.learner.move_to(cpu)

    def _evaluate(self, title: str) -> None:
        """Sampled and greedy play on held-out seeds, shared among the ranks; keeps one episode to look at."""
        seeds = self.players.share(self.config.evaluation.episodes)
        reports: Reports = {}
        examples: list[Trajectory] = []
        with self.display.phase(title, 2 * len(seeds)) as phase:
            for agent in (self.players.agent(), self.players.agent(greedy=True)):
                collected = self.evaluation_envs.collect(
                    agent,
                    [EpisodeRequest(seed=seed, agent_seed=seed) for seed in seeds],
                    on_episode=lambda *_: phase.advance(),
                    allow_missing=True,
                )
                present = [seed for place, seed in enumerate(seeds) if place not in collected.missing]
                indexed = list(zip(present, collected.trajectories, strict=True))
                finished, failed = gather(indexed, collected.failed)
                shared: Any = None
                if is_main():
                    shared = summarise(self.config.env.id, agent.name, [*finished, *failed]), finished[:1]
                reports[agent.name], first = from_main(shared)
                examples += first
        if not examples:
            raise RuntimeError(f"no evaluation episode of {self.config.env.id} finished")
        self.example, self.evaluated, self.state.reports = examples[0], self.state.iteration, reports
        for kind, report in reports.items():
            self.state.metrics |= {f"evaluation/{kind}/{name}": value for name, value in report.metrics().items()}
        self._call("on_evaluate")


def _warn_of_mismatch(iteration: int, metrics: Mapping[str, float]) -> None:
    """Says so where the learner finds other log-probabilities than tokens were sampled with by the same weights."""
    difference = metrics.get("mismatch/mean_abs", 0.0)
    if difference > _LARGE_MISMATCH and not metrics["rollout/stale_share"]:
        _log.warning(
            "Iteration %d: the learner's log-probabilities differ from those of sampling by %.2g on average, with "
            "the same weights; training does not optimise what is sampled. Does the policy compute the same model?",
            *(iteration, difference),
        )
