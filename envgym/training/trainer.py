"""One training run on one rank: where environments, policy and learner are wired together."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from envgym.agent import Agent
from envgym.agents.policy_agent import PolicyAgent
from envgym.config import NewModel, TrainConfig, WarmStartConfig
from envgym.engines import EngineSetup, make_engine
from envgym.engines.base import Engine
from envgym.engines.embedded.tiny_model import create_model
from envgym.env import TextEnv
from envgym.errors import PromptLengthError
from envgym.evaluation.results import EnvironmentReport, summarise
from envgym.learner.batch import make_sample
from envgym.learner.checkpoint import export_model, load_newest, save_checkpoint
from envgym.learner.distributed import is_main, on_main
from envgym.learner.learner import Learner, weights_dtype
from envgym.model_folder import load_model, load_tokenizer
from envgym.registry import make
from envgym.rendering import make_renderer, tools_for
from envgym.rollout.collector import Collector, EpisodeRequest
from envgym.rollout.seeds import FIRST_TRAINING_SEED, training_requests
from envgym.rollout.staleness import dropped_metrics, lag_metrics
from envgym.rollout.tokenising import tokenise
from envgym.training.episodes import IterationEpisodes
from envgym.training.run_folder import CHECKPOINTS, INITIAL_MODEL, MODEL, SERVERS, RunFolder
from envgym.training.warm_start import imitate_agent
from envgym.types import SamplingParams, Trajectory

if TYPE_CHECKING:
    from envgym.training.progress import Phase, ProgressDisplay

_log = logging.getLogger(__name__)
_LARGE_MISMATCH = 0.05
"""Mean absolute difference of log-probabilities, in nats, that rounding does not explain."""
_PROMPTS_CHECKED = 16
"""First prompts that must all be too long before a run is refused: those of some seeds may be longer than others."""
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
    """

    run_dir: Path
    model_dir: Path
    before: Reports
    after: Reports
    example: Trajectory
    metrics: dict[str, float]


class Trainer:
    """A training run on one rank; see `train`."""

    def __init__(
        self, config: TrainConfig, *, mesh: DeviceMesh, device: torch.device, display: ProgressDisplay, resume: bool
    ) -> None:
        self.config = config
        self.device = device
        self.display = display
        self.resume = resume
        self.rank, self.num_ranks = dist.get_rank(), dist.get_world_size()
        if config.rollout.episodes_per_iteration < self.num_ranks:
            raise ValueError(
                f"rollout.episodes_per_iteration ({config.rollout.episodes_per_iteration}) is smaller than the number "
                f"of ranks ({self.num_ranks}); every rank needs an episode to collect"
            )
        # Before there is a run folder, so that the same command works once the mistake is corrected.
        self._make_env(config.env.max_turns).close()
        if not isinstance(config.model, NewModel):
            make_renderer(load_tokenizer(config.model.path), config.renderer)
        self._opened = ExitStack()
        try:
            self.folder = self._open_folder()
            if self.folder is not None:
                self._opened.callback(self.folder.close)
            model_dir = self._model_folder()
            self.tokenizer = load_tokenizer(model_dir)
            self.renderer = make_renderer(self.tokenizer, config.renderer)
            # Before the learner is on the device: an engine that shares it measures how much memory is free.
            self.engine = self._engine(model_dir)
            self._opened.callback(self.engine.close)
            self._check_prompt()
            if self.engine.shares_memory:
                self.engine.sleep()
            self.learner = Learner(load_model(model_dir, weights_dtype(config)), config, mesh=mesh, device=device)
        except BaseException:
            self.close()
            raise
        self.evaluation_envs = self._collector(config.evaluation.max_turns, 0.0)

    # -- setting up ---------------------------------------------------------------------------------------------------

    def _open_folder(self) -> RunFolder | None:
        """Opens the run folder on the main rank; an error there is raised on every rank."""
        return on_main(lambda: RunFolder.reopen(self.config) if self.resume else RunFolder.create(self.config))

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

    def _check_prompt(self) -> None:
        """Renders first prompts until one fits, so that a context too short for all is known before any work."""
        env = self._make_env(self.config.env.max_turns)
        base: Any = env.unwrapped
        last = FIRST_TRAINING_SEED + _PROMPTS_CHECKED - 1
        try:
            for seed in range(FIRST_TRAINING_SEED, last + 1):
                try:
                    observation, info = env.reset(seed=seed)
                except Exception:  # an environment that fails now and then is the collector's business
                    return
                role = info.get("role", "user")
                prompt = self.renderer.start(base.system_prompt, tools_for(env), observation, role)
                try:
                    self.agent().check_fits(len(prompt))
                except PromptLengthError:
                    if seed == last:
                        raise
                else:
                    return
        finally:
            env.close()

    def _make_env(self, max_turns: int | None) -> TextEnv:
        return make(self.config.env.id, max_turns=max_turns, **self.config.env.kwargs)

    def _collector(self, max_turns: int | None, overlong_penalty: float) -> Collector:
        rollout = self.config.rollout
        collector = Collector(
            lambda: self._make_env(max_turns),
            concurrency=rollout.concurrency,
            num_threads=rollout.num_threads,
            overlong_penalty=overlong_penalty,
            step_timeout_s=rollout.step_timeout_s,
        )
        self._opened.callback(collector.close)
        return collector

    def _training_envs(self) -> Collector:
        return self._collector(self.config.env.max_turns, self.config.rollout.overlong_penalty)

    def close(self) -> None:
        """Closes what was opened, the last first: episodes under way, environments, the engine, files."""
        self._opened.close()

    def agent(self, *, greedy: bool = False) -> PolicyAgent:
        """The policy being trained, as an agent."""
        rollout = self.config.rollout
        sampling = SamplingParams(
            max_new_tokens=rollout.max_turn_tokens,
            temperature=0.0 if greedy else rollout.temperature,
            top_k=rollout.top_k,
            top_p=rollout.top_p,
        )
        return PolicyAgent(self.engine.policy, self.renderer, sampling, name="greedy" if greedy else "sampled")

    # -- the run ------------------------------------------------------------------------------------------------------

    def run(self) -> TrainResult:
        """Runs from the start, or from the newest checkpoint, to the end."""
        config = self.config
        state = self._restore() if self.resume else self._begin()
        before = {kind: EnvironmentReport(**report) for kind, report in state["before"].items()}
        pretraining, first = state["pretraining"], state["learner"]["iteration"] + 1
        metrics: dict[str, float] = {}
        after: Reports = {}
        example: Trajectory | None = None
        episodes = IterationEpisodes(
            config,
            self._training_envs,
            self.agent(),
            first=first,
            indices=self._share(config.rollout.episodes_per_iteration),
            device=self.device,
            recover=(lambda iteration: self._sync(iteration - 1)) if self.engine.recoverable else None,
        )
        self._opened.callback(episodes.close)
        if first <= config.num_iterations:
            episodes.advance(first - 1)
        with self.display.phase("training", config.num_iterations) as phase:
            phase.advance(first - 1)
            for iteration in range(first, config.num_iterations + 1):
                metrics, pretraining = self._iteration(episodes, iteration, pretraining, phase)
                last = iteration == config.num_iterations
                if last or (config.evaluation.every and iteration % config.evaluation.every == 0):
                    after, example = self.evaluate("evaluating")
                    metrics |= _evaluation_metrics(after)
                if self.folder is not None:
                    self.folder.log(iteration, metrics)
                if last or iteration % config.checkpoint.every == 0:
                    self._save(iteration, {"before": state["before"], "pretraining": pretraining})
        if example is None:  # nothing was left to do
            after, example = self.evaluate("evaluating")
        model_dir = export_model(config.run_dir / MODEL, self.learner, self.tokenizer)
        return TrainResult(config.run_dir, model_dir, before, after, example, metrics)

    def _begin(self) -> dict[str, Any]:
        """Warm start and first evaluation."""
        metrics = {} if self.config.warm_start is None else self._warm_start(self.config.warm_start)
        self.learner.start_from_policy()
        self._sync(0)
        before, _ = self.evaluate("evaluating before training")
        if self.folder is not None:
            self.folder.log(0, metrics | _evaluation_metrics(before))
        state = {
            "before": {kind: report.as_dict() for kind, report in before.items()},
            "pretraining": self.config.critic.pretraining is not None,
        }
        self._save(0, state)
        return {**state, "learner": {"iteration": 0}}

    def _warm_start(self, warm_start: WarmStartConfig) -> dict[str, float]:
        indices, attempts = self._share(warm_start.num_episodes), self.config.rollout.max_attempts
        requests = training_requests(self.config.seed, "warm_start", 0, indices, max_attempts=attempts)
        max_turns = warm_start.max_turns or self.config.env.max_turns
        overlong_penalty = self.config.rollout.overlong_penalty if warm_start.max_turns is None else 0.0
        return imitate_agent(
            warm_start,
            list(zip(indices, requests, strict=True)),
            self.learner,
            self._collector(max_turns, overlong_penalty),
            lambda trajectory, env: tokenise(trajectory, env, self.renderer),
            make_env=lambda: self._make_env(self.config.env.max_turns),
            context_length=self.engine.policy.context_length,
            display=self.display,
            seed=self.config.seed,
        )

    def _restore(self) -> dict[str, Any]:
        folder, needs = self.config.run_dir / CHECKPOINTS, ("before", "pretraining", "sizes")
        state = load_newest(folder, self.learner, needs=needs, set_aside=True)
        if self.folder is not None:
            self.folder.rewind(state["sizes"])
        self._sync(state["learner"]["iteration"])
        return state

    def _save(self, iteration: int, state: dict[str, Any]) -> None:
        sizes = {} if self.folder is None else self.folder.sizes()
        checkpoint = self.config.checkpoint
        save_checkpoint(
            self.config.run_dir / CHECKPOINTS,
            self.learner,
            {**state, "sizes": sizes},
            iteration=iteration,
            keep=checkpoint.keep,
        )

    def _sync(self, version: int) -> None:
        """Has the engine sample with the present weights; where memory is shared, the learner makes room for it."""
        cpu = torch.device("cpu")
        if self.engine.shares_memory:
            self.learner.move_to(cpu, but_actor=True)
            self.engine.wake()
        self.engine.sync(self.learner.actor.lm, version)
        if self.engine.shares_memory:
            self.learner.move_to(cpu)

    def _iteration(
        self, episodes: IterationEpisodes, iteration: int, pretraining: bool, phase: Phase
    ) -> tuple[dict[str, float], bool]:
        """Collects, updates and syncs; returns metrics and whether value pretraining goes on."""
        config = self.config
        started = time.perf_counter()
        collected = episodes.collect(iteration)
        indexed = list(zip(episodes.indices, collected.trajectories, strict=True))
        samples = [make_sample(trajectory, index) for index, trajectory in indexed]
        metrics = self._record(indexed, collected.failed, version=iteration - 1)
        if self.engine.shares_memory:
            self.engine.sleep()
            self.learner.move_to(self.device)
        gathered = time.perf_counter()
        metrics |= self.learner.train_on(samples, seed=_iteration_seed(config, iteration), update_actor=not pretraining)
        self._check_mismatch(iteration, metrics)
        metrics["critic/pretraining"] = float(pretraining)
        if pretraining:
            assert config.critic.pretraining is not None
            explained = metrics["critic/explained_variance"]
            pretraining = (
                iteration < config.critic.pretraining.max_iterations
                and explained < config.critic.pretraining.explained_variance
            )
        updated = time.perf_counter()
        self._sync(iteration)
        episodes.advance(iteration)
        finished = time.perf_counter()
        metrics |= {
            "time/collect_s": gathered - started,
            "time/update_s": updated - gathered,
            "time/sync_s": finished - updated,
            "time/action_tokens_per_s": metrics["batch/action_tokens"] / (gathered - started),
        }
        success = f"success {metrics['episode/success']:.2f}, " if "episode/success" in metrics else ""
        phase.advance(note=f"{success}return {metrics['episode/return']:.2f}")
        return metrics, pretraining

    def _check_mismatch(self, iteration: int, metrics: dict[str, float]) -> None:
        """Says so where the learner finds other log-probabilities than tokens were sampled with by the same weights."""
        difference = metrics.get("mismatch/mean_abs", 0.0)
        if difference > _LARGE_MISMATCH and not metrics["rollout/stale_share"] and self.folder is not None:
            _log.warning(
                "Iteration %d: the learner's log-probabilities differ from those of sampling by %.2g on average, with "
                "the same weights; training does not optimise what is sampled. Does the policy compute the same model?",
                *(iteration, difference),
            )

    def _share(self, count: int) -> range:
        """Which of so many episodes this rank plays."""
        return range(self.rank, count, self.num_ranks)

    def _record(
        self, indexed: Sequence[tuple[int, Trajectory]], dropped: Sequence[Trajectory], *, version: int
    ) -> dict[str, float]:
        """Writes all ranks' episodes in order and returns their metrics, on every rank."""
        trajectories, failed = self._gather(indexed, dropped)
        shared: list[Any] = [None]
        if self.folder is not None:
            self.folder.record([*trajectories, *failed])
            report = summarise(self.config.env.id, "policy", [*trajectories, *failed])
            lag = lag_metrics(trajectories, version=version) | dropped_metrics(failed)
            shared = [
                {f"episode/{name}": value for name, value in report.metrics().items()}
                | {f"rollout/{name}": value for name, value in lag.items()}
            ]
        dist.broadcast_object_list(shared, src=0)
        return shared[0]

    def _gather(
        self, indexed: Sequence[tuple[int, Trajectory]], failed: Sequence[Trajectory]
    ) -> tuple[list[Trajectory], list[Trajectory]]:
        """All ranks' episodes in the order of their indices, on the main rank; empty elsewhere."""
        parts: list[Any] | None = [None] * self.num_ranks if is_main() else None
        dist.gather_object((list(indexed), list(failed)), parts, dst=0)
        if parts is None:
            return [], []
        ordered = sorted((entry for part in parts for entry in part[0]), key=lambda entry: entry[0])
        return [trajectory for _, trajectory in ordered], [trajectory for part in parts for trajectory in part[1]]

    # -- evaluation ---------------------------------------------------------------------------------------------------

    def evaluate(self, title: str) -> tuple[Reports, Trajectory]:
        """Sampled and greedy play on held-out seeds, shared among the ranks; and one sampled episode to look at."""
        tasks = self._share(self.config.evaluation.episodes)
        reports: Reports = {}
        example: Trajectory | None = None
        with self.display.phase(title, 2 * len(tasks)) as phase:
            for agent in (self.agent(), self.agent(greedy=True)):
                trajectories = self._play(agent, tasks, phase)
                shared: list[Any] = [None, None]
                if is_main():
                    report = summarise(self.config.env.id, agent.name, trajectories)
                    shared = [report, next((t for t in trajectories if t.failure is None), None)]
                dist.broadcast_object_list(shared, src=0)
                reports[agent.name] = shared[0]
                example = example or shared[1]
        if example is None:
            raise RuntimeError(f"no evaluation episode of {self.config.env.id} finished")
        return reports, example

    def _play(self, agent: Agent, tasks: range, phase: Phase) -> list[Trajectory]:
        collected = self.evaluation_envs.collect(
            agent,
            [EpisodeRequest(seed=task, agent_seed=task) for task in tasks],
            on_episode=lambda *_: phase.advance(),
            allow_missing=True,
        )
        present = [task for place, task in enumerate(tasks) if place not in collected.missing]
        indexed = list(zip(present, collected.trajectories, strict=True))
        finished, failed = self._gather(indexed, collected.failed)
        return finished + failed


def _iteration_seed(config: TrainConfig, iteration: int) -> int:
    return config.seed * 1_000_003 + iteration


def _evaluation_metrics(reports: Reports) -> dict[str, float]:
    return {
        f"evaluation/{kind}/{name}": value
        for kind, report in reports.items()
        for name, value in report.metrics().items()
    }
