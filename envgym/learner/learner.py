"""The actor-critic learner: one process per device, everything it computes independent of how many there are."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from envgym.config import OptimizerConfig, TrainConfig
from envgym.learner.batch import Batch, Sample, collate, exchange_samples, plan_batch, plan_microbatches
from envgym.learner.distributed import copy_parameters, move_state, of_all_ranks, shard
from envgym.learner.estimator import Estimator, EstimatorBatch, GAEEstimator
from envgym.learner.importance import icepop_weights, tis_weights
from envgym.learner.kl import AdaptiveKL, kl_estimate
from envgym.learner.losses import Loss, LossInputs, PPOClipLoss, aggregate, ratio_metrics, value_loss
from envgym.learner.metrics import MetricSums, all_reduce_sum, batch_metrics, update_metrics
from envgym.learner.model import Actor, Critic
from envgym.learner.optimizer import ScheduledAdamW
from envgym.learner.whitening import whiten


def weights_dtype(config: TrainConfig) -> torch.dtype:
    """Type of the trained weights and of everything per token: float32 unless the run is in float64."""
    return torch.float64 if config.dtype == "float64" else torch.float32


class Learner:
    """Holds actor, critic and reference, and turns batches of samples into updates.

    Every method that takes samples or a batch is a collective: all ranks call it, with whatever they have. The result
    of an update does not depend on the number of ranks or on the size of micro-batches.

    Args:
        lm: The Hugging Face causal language model to train, in `weights_dtype(config)`; equal on every rank.
        config: The run's configuration.
        mesh: All ranks.
        device: Of this rank.
        loss: What the policy minimises; None is what the configuration names.
        estimator: Where advantages come from; None is what the configuration names. One that needs no critic makes a
            learner without one.
    """

    def __init__(
        self,
        lm: Any,
        config: TrainConfig,
        *,
        mesh: DeviceMesh,
        device: torch.device,
        loss: Loss | None = None,
        estimator: Estimator | None = None,
    ) -> None:
        self.config = config
        self.device = device
        self.dtype = weights_dtype(config)
        self.loss = _loss(config) if loss is None else loss
        self.estimator = _estimator(config) if estimator is None else estimator
        self.context_length = int(lm.config.max_position_embeddings)
        lm.to(device)
        trunk = copy.deepcopy(lm.model) if self.estimator.needs_critic else None
        frozen = copy.deepcopy(lm) if config.kl is not None else None
        compute_dtype = torch.bfloat16 if config.dtype == "bfloat16" else None
        total_updates = max(config.num_iterations, 1) * config.update.num_epochs * config.update.num_minibatches
        self.actor = shard(Actor(lm), lm.model.layers, mesh, compute_dtype=compute_dtype)
        self.actor_optimizer = ScheduledAdamW(self.actor, config.actor, total_updates=total_updates)
        self.critic: Critic | None = None
        self.critic_optimizer: ScheduledAdamW | None = None
        if trunk is not None:
            critic = Critic(trunk, lm.config.hidden_size).to(device)
            self.critic = shard(critic, trunk.layers, mesh, compute_dtype=compute_dtype)
            self.critic_optimizer = ScheduledAdamW(self.critic, config.critic.optimizer, total_updates=total_updates)
        self.reference: Actor | None = None
        if frozen is not None:
            reference = Actor(frozen).requires_grad_(False)
            self.reference = shard(reference, frozen.model.layers, mesh, compute_dtype=compute_dtype)
        self.kl = None
        if config.kl is not None and config.kl.target is not None:
            self.kl = AdaptiveKL(config.kl.beta, config.kl.target, config.kl.horizon)

    @property
    def modules(self) -> dict[str, Actor | Critic]:
        """The modules that this learner has, by name."""
        every = {"actor": self.actor, "critic": self.critic, "reference": self.reference}
        return {name: module for name, module in every.items() if module is not None}

    @property
    def optimizers(self) -> dict[str, ScheduledAdamW]:
        """The optimizers of the modules that are trained, by the module's name."""
        every = {"actor": self.actor_optimizer, "critic": self.critic_optimizer}
        return {name: optimizer for name, optimizer in every.items() if optimizer is not None}

    # -- supervised start ---------------------------------------------------------------------------------------------

    def imitate(
        self,
        samples: Sequence[Sample],
        config: OptimizerConfig,
        *,
        epochs: int,
        updates: int,
        seed: int,
        on_update: Callable[[float], None] = lambda _: None,
    ) -> list[float]:
        """Supervised training: masked negative log-likelihood of given action tokens.

        Args:
            samples: What this rank has of the demonstrations.
            config: The optimizer of this phase; its schedule runs over all its updates.
            epochs: Passes over all samples.
            updates: Updates of one pass.
            seed: Seed of the order.
            on_update: Called with the loss of each update.

        Returns:
            Mean negative log-likelihood per action token (nats) of each update.
        """
        batch, minibatches = self._distribute(samples, updates, seed)
        optimizer = ScheduledAdamW(self.actor, config, total_updates=epochs * updates)
        rng = np.random.default_rng((seed, 2))
        losses = []
        for number in [int(n) for _ in range(epochs) for n in rng.permutation(updates)]:
            rows = (minibatches == number).nonzero().flatten()
            num_tokens = all_reduce_sum(batch.loss_mask[rows].sum().double())
            sums = MetricSums(self.device)
            for part in self._microbatches(batch, rows):
                micro = batch.select(part)
                logprobs, _ = self._actor_forward(self.actor, micro, with_entropy=False, temperature=1.0)
                loss = aggregate(-logprobs, micro.loss_mask, aggregation="token-mean", num_tokens=num_tokens)
                loss.backward()
                sums.add({"loss_sum": loss})
            optimizer.step()
            losses.append(sums.reduce()["loss_sum"])
            on_update(losses[-1])
        return losses

    def start_from_policy(self) -> None:
        """Makes the critic's trunk and the reference copies of the present policy, with a fresh value head."""
        if self.critic is not None:
            copy_parameters(self.actor.lm.model, self.critic.trunk)
            self.critic.init_head(self.config.critic.head_init, seed=self.config.seed)
        if self.reference is not None:
            copy_parameters(self.actor, self.reference)

    def move_to(self, device: torch.device, *, but_actor: bool = False) -> None:
        """Takes all training state to the CPU, or back to `self.device`; see `envgym.learner.distributed.move_state`.

        Args:
            device: Where to.
            but_actor: Leave the policy's weights where they are, for example to send them elsewhere.
        """
        modules = [module for name, module in self.modules.items() if not (but_actor and name == "actor")]
        move_state(modules, [optimizer.adam for optimizer in self.optimizers.values()], device)

    # -- one iteration ------------------------------------------------------------------------------------------------

    def train_on(self, samples: Iterable[Sample], *, seed: int, update_actor: bool = True) -> dict[str, float]:
        """One iteration on freshly collected samples.

        Args:
            samples: What this rank collected; `index` must be unique over all ranks.
            seed: Seed of the minibatches.
            update_actor: False updates the critic only (value pretraining).

        Returns:
            Metrics, the same on every rank.

        Raises:
            ValueError: There are fewer samples than minibatches.
        """
        update = self.config.update
        batch, minibatches = self._distribute(samples, update.num_minibatches, seed)
        self.score(batch)
        batch.old_values = batch.values
        batch.weights = self._importance_weights(batch)
        batch.rewards, metrics = self._shape_rewards(batch)
        self.estimate(batch)
        metrics |= batch_metrics(batch, self.device, critic=self.critic is not None)
        sums = MetricSums(self.device)
        rng = np.random.default_rng((seed, 1))
        num_updates, stopped = 0, False
        skipped = self._num_skipped()
        for epoch in range(update.num_epochs):
            if epoch and self.config.estimator.recompute_each_epoch:
                self._score_values(batch)
                self.estimate(batch)
            for number in rng.permutation(update.num_minibatches):
                result = self._update(batch, (minibatches == int(number)).nonzero().flatten(), update_actor)
                if num_updates == 0:
                    metrics["policy/first_ratio_max"] = result.get("policy/ratio_max", 1.0)
                sums.add(result)
                num_updates += 1
                if update_actor and update.target_kl is not None:
                    # All-reduced, so every rank stops at the same update.
                    mean = result["policy/kl_proximal_k3_sum"] / max(result["policy/num_tokens"], 1)
                    stopped = mean > update.target_kl
                    if stopped:
                        break
            if stopped:
                break
        metrics["policy/early_stop"] = float(stopped)
        metrics["batch/skipped_updates"] = float(self._num_skipped() - skipped)
        return metrics | update_metrics(sums, num_updates)

    def _num_skipped(self) -> int:
        return sum(optimizer.num_skipped for optimizer in self.optimizers.values())

    def score(self, batch: Batch) -> None:
        """Fills proximal (and reference) log-probabilities, values and bootstrap values, without gradients."""
        batch.proximal_logprobs = self._scores(
            batch, lambda micro: self._actor_forward(self.actor, micro, with_entropy=False)[0]
        )
        if (reference := self.reference) is not None:
            batch.ref_logprobs = self._scores(
                batch, lambda micro: self._actor_forward(reference, micro, with_entropy=False)[0]
            )
        self._score_values(batch)

    def _score_values(self, batch: Batch) -> None:
        if (critic := self.critic) is not None:
            after_each = self._scores(batch, lambda micro: critic(micro.token_ids))
            batch.values = _before_each(after_each)
            after_all = after_each.gather(1, batch.lengths[:, None] - 1).squeeze(1)
            batch.bootstrap_value = torch.where(batch.terminated, 0.0, after_all)

    def _scores(self, batch: Batch, forward: Callable[[Batch], Tensor]) -> Tensor:
        """What `forward` makes of the tokens of all rows, one micro-batch at a time, [B, T]; 0 in the padding."""
        scores = torch.zeros_like(batch.values)
        with torch.no_grad():
            for rows in self._microbatches(batch, torch.arange(batch.size, device=self.device)):
                part = forward(batch.select(rows))
                scores[rows, : part.shape[1]] = part[: len(rows)].to(scores.dtype)
        return scores

    def estimate(self, batch: Batch) -> None:
        """Fills advantages, whitened where the scope is the batch, and value targets of a scored batch."""
        critic = self.critic is not None
        advantages, targets = self.estimator(
            EstimatorBatch(
                rewards=batch.rewards,
                values=batch.values if critic else None,
                bootstrap_value=batch.bootstrap_value if critic else None,
                action_mask=batch.action_mask,
                loss_mask=batch.loss_mask,
                turn_ids=batch.turn_ids,
                turn_steps=batch.turn_steps,
                groups=batch.groups,
                terminated=batch.terminated,
            )
        )
        advantages = torch.where(batch.action_mask, advantages, 0.0)
        if self.config.estimator.whiten == "batch":
            advantages = whiten(advantages, batch.loss_mask)
        assert bool(torch.isfinite(advantages).all()), "an advantage is not finite"
        batch.advantages = advantages
        if critic:
            assert targets is not None, "an estimator that needs a critic must give it targets"
            batch.value_targets = targets

    def _shape_rewards(self, batch: Batch) -> tuple[Tensor, dict[str, float]]:
        """Rewards less the KL penalty on action tokens, and what there is to say about the penalty."""
        config = self.config.kl
        if config is None or batch.ref_logprobs is None:
            return batch.rewards, {}
        beta = config.beta if self.kl is None else self.kl.beta
        kl = kl_estimate(batch.proximal_logprobs, batch.ref_logprobs, config.estimator)
        kl = torch.where(batch.action_mask, kl, 0.0)
        totals = all_reduce_sum(torch.stack([kl.double().sum(), batch.action_mask.sum().double()]))
        mean = float(totals[0] / totals[1].clamp(min=1))
        if self.kl is not None:
            count = int(all_reduce_sum(torch.tensor(batch.size, dtype=torch.int64, device=self.device)))
            self.kl.update(mean, count)
        return batch.rewards - beta * kl, {"policy/kl_reference": mean, "policy/kl_beta": beta}

    def _importance_weights(self, batch: Batch) -> Tensor | None:
        """Weights for the gap between the sampling probabilities and the trainer's, [B, T]; None where switched off."""
        config = self.config.loss
        given = (batch.proximal_logprobs, batch.behavior_logprobs, batch.loss_mask)
        if config.importance == "none":
            return None
        return tis_weights(*given, cap=config.importance_cap) if config.importance == "tis" else icepop_weights(*given)

    def _update(self, batch: Batch, rows: Tensor, update_actor: bool) -> dict[str, float]:
        """One optimizer update of actor and critic on a minibatch. Metrics are sums over all ranks."""
        loss_mask = batch.loss_mask[rows]
        counts = all_reduce_sum(torch.stack([loss_mask.sum(), loss_mask.any(dim=1).sum()]).double())
        counted = {"num_tokens": counts[0], "num_sequences": counts[1], "norm_length": self.context_length}
        if self.config.estimator.whiten == "minibatch":
            batch = replace(batch, advantages=self._whitened(batch, rows))
        sums = MetricSums(self.device)
        for part in self._microbatches(batch, rows):
            micro = batch.select(part)
            if update_actor:
                sums.add(self._policy_backward(micro, counted))
            if self.critic is not None:
                sums.add(self._value_backward(micro, self.critic, counted))
        reduced = sums.reduce()
        for name, optimizer in self.optimizers.items():
            if update_actor or name != "actor":
                reduced[f"{'policy' if name == 'actor' else name}/grad_norm"] = optimizer.step()
        return reduced

    def _policy_backward(self, micro: Batch, counted: dict[str, Any]) -> dict[str, Tensor]:
        config = self.config.loss
        logprobs, entropy = self._actor_forward(self.actor, micro)
        inputs = LossInputs(
            logprobs=logprobs,
            proximal_logprobs=micro.proximal_logprobs,
            behavior_logprobs=micro.behavior_logprobs,
            advantages=micro.advantages,
            loss_mask=micro.loss_mask,
            entropy=entropy,
            turn_ids=micro.turn_ids,
            weights=micro.weights,
            aggregation=config.aggregation,
            **counted,
        )
        loss, metrics = self.loss(inputs)
        bonus = aggregate(entropy, micro.loss_mask, **inputs.counts)
        (loss - config.entropy_coefficient * bonus).backward()
        metrics = ratio_metrics(logprobs, micro.proximal_logprobs, micro.loss_mask) | metrics
        metrics |= {"loss": loss, "entropy_sum": torch.where(micro.loss_mask, entropy, 0.0).sum()}
        return {f"policy/{name}": value for name, value in metrics.items()}

    def _value_backward(self, micro: Batch, critic: Critic, counted: dict[str, Any]) -> dict[str, Tensor]:
        loss, metrics = value_loss(
            _before_each(critic(micro.token_ids)),
            micro.old_values,
            micro.value_targets,
            micro.loss_mask,
            clip=self.config.critic.value_clip,
            aggregation=self.config.loss.aggregation,
            **counted,
        )
        loss.backward()
        return {f"critic/{name}": value for name, value in metrics.items()} | {"critic/loss": loss}

    def _whitened(self, batch: Batch, rows: Tensor) -> Tensor:
        """Advantages with those of some rows whitened among themselves, over all ranks."""
        out = batch.advantages.clone()
        out[rows] = whiten(batch.advantages[rows], batch.loss_mask[rows])
        return out

    # -- rows and forward passes --------------------------------------------------------------------------------------

    def _distribute(self, samples: Iterable[Sample], num_minibatches: int, seed: int) -> tuple[Batch, Tensor]:
        """The share of the global batch that this rank computes, and the minibatch of each of its rows."""
        samples = list(samples)
        gathered = of_all_ranks([(sample.index, sample.length) for sample in samples])
        lengths = dict(sorted(entry for part in gathered for entry in part))
        assert len(lengths) == sum(map(len, gathered)), "sample indices must be unique over all ranks"
        position = {index: place for place, index in enumerate(lengths)}
        plan = plan_batch(
            list(lengths.values()), num_minibatches=num_minibatches, num_ranks=dist.get_world_size(), seed=seed
        )
        destinations = [int(plan.rank[position[sample.index]]) for sample in samples]
        mine = exchange_samples(samples, destinations, device=self.device)
        batch = collate(mine, dtype=self.dtype, device=self.device)
        minibatches = [int(plan.minibatch[position[sample.index]]) for sample in mine]
        return batch, torch.tensor(minibatches, dtype=torch.int64, device=self.device)

    def _microbatches(self, batch: Batch, rows: Tensor) -> list[Tensor]:
        return plan_microbatches(batch.lengths, rows, max_tokens=self.config.update.max_microbatch_tokens)

    def _actor_forward(
        self, actor: Actor, micro: Batch, *, with_entropy: bool = True, temperature: float | None = None
    ) -> tuple[Tensor, Tensor]:
        """Log-probabilities and entropies of the action tokens of a micro-batch, [b, t], 0 elsewhere."""
        rows, cols = micro.action_mask.nonzero(as_tuple=True)
        logprobs, entropies = actor(
            micro.token_ids,
            rows,
            cols,
            temperature=self.config.rollout.temperature if temperature is None else temperature,
            supports=micro.supports,
            with_entropy=with_entropy,
        )
        empty = logprobs.new_zeros(micro.token_ids.shape)
        return empty.index_put((rows, cols), logprobs), empty.index_put((rows, cols), entropies)


def _before_each(after_each: Tensor) -> Tensor:
    """V of the state before each token, from the critic's V of the state after each; 0 before the first, [b, t]."""
    return torch.cat([torch.zeros_like(after_each[:, :1]), after_each[:, :-1]], dim=1)


def _loss(config: TrainConfig) -> Loss:
    if config.loss.kind == "ppo_clip":
        return PPOClipLoss(config.loss)
    return HandedOver(config.loss.name)


def _estimator(config: TrainConfig) -> Estimator:
    if config.estimator.kind == "gae":
        return GAEEstimator(config.estimator)
    return HandedOver(config.estimator.name, needs_critic=config.estimator.needs_critic)


class HandedOver:
    """Stands in for a loss or an estimator that only the script of a run has; enough to load a run and export it."""

    def __init__(self, name: str, *, needs_critic: bool = True) -> None:
        self.name = name
        self.needs_critic = needs_critic

    def __call__(self, _: Any, /) -> Any:
        raise ValueError(f"this run trains with '{self.name}', which its script hands to train(...); run that script")
