"""The actor-critic learner: one process per device, everything it computes independent of how many there are."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from envgym.config import OptimizerConfig, TrainConfig
from envgym.learner.advantages import estimate_advantages
from envgym.learner.batch import Batch, Sample, collate, exchange_samples, plan_batch, plan_microbatches
from envgym.learner.distributed import copy_parameters, move_state, shard
from envgym.learner.importance import icepop_weights, tis_weights
from envgym.learner.kl import AdaptiveKL, kl_estimate
from envgym.learner.losses import aggregate, policy_loss, value_loss
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
    """

    def __init__(self, lm: Any, config: TrainConfig, *, mesh: DeviceMesh, device: torch.device) -> None:
        self.config = config
        self.device = device
        self.dtype = weights_dtype(config)
        self.context_length = int(lm.config.max_position_embeddings)
        lm.to(device)
        trunk = copy.deepcopy(lm.model)
        frozen = copy.deepcopy(lm) if config.kl is not None else None
        compute_dtype = torch.bfloat16 if config.dtype == "bfloat16" else None
        self.actor = shard(Actor(lm), lm.model.layers, mesh, compute_dtype=compute_dtype)
        critic = Critic(trunk, lm.config.hidden_size).to(device)
        self.critic = shard(critic, trunk.layers, mesh, compute_dtype=compute_dtype)
        self.reference: Actor | None = None
        if frozen is not None:
            reference = Actor(frozen).requires_grad_(False)
            self.reference = shard(reference, frozen.model.layers, mesh, compute_dtype=compute_dtype)
        self.kl = None
        if config.kl is not None and config.kl.target is not None:
            self.kl = AdaptiveKL(config.kl.beta, config.kl.target, config.kl.horizon)
        total_updates = max(config.num_iterations, 1) * config.update.num_epochs * config.update.num_minibatches
        self.actor_optimizer = ScheduledAdamW(self.actor, config.actor, total_updates=total_updates)
        self.critic_optimizer = ScheduledAdamW(self.critic, config.critic.optimizer, total_updates=total_updates)

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
            for micro in self._microbatches(batch, rows):
                logprobs, _ = self._actor_forward(self.actor, batch, micro, with_entropy=False, temperature=1.0)
                mask = self._mask(batch, micro)
                loss = aggregate(-logprobs, mask, aggregation="token-mean", num_tokens=num_tokens)
                loss.backward()
                sums.add({"loss_sum": loss})
            optimizer.step()
            losses.append(sums.reduce()["loss_sum"])
            on_update(losses[-1])
        return losses

    def start_from_policy(self) -> None:
        """Makes the critic's trunk and the reference copies of the present policy, with a fresh value head."""
        copy_parameters(self.actor.lm.model, self.critic.trunk)
        if self.reference is not None:
            copy_parameters(self.actor, self.reference)
        self.critic.init_head(self.config.critic.head_init, seed=self.config.seed)

    def move_to(self, device: torch.device, *, but_actor: bool = False) -> None:
        """Takes all training state to the CPU, or back to `self.device`; see `envgym.learner.distributed.move_state`.

        Args:
            device: Where to.
            but_actor: Leave the policy's weights where they are, for example to send them elsewhere.
        """
        modules = [None if but_actor else self.actor, self.critic, self.reference]
        optimizers = [self.actor_optimizer.adam, self.critic_optimizer.adam]
        move_state([module for module in modules if module is not None], optimizers, device)

    # -- one iteration ------------------------------------------------------------------------------------------------

    def train_on(self, samples: Sequence[Sample], *, seed: int, update_actor: bool = True) -> dict[str, float]:
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
        rewards, metrics = self._shape_rewards(batch)
        estimate_advantages(batch, self.config.advantages, rewards=rewards)
        metrics |= batch_metrics(batch, self.device)
        old_values = batch.values
        sums = MetricSums(self.device)
        rng = np.random.default_rng((seed, 1))
        num_updates, stopped = 0, False
        skipped = self.actor_optimizer.num_skipped + self.critic_optimizer.num_skipped
        for epoch in range(update.num_epochs):
            if epoch and self.config.advantages.recompute_each_epoch:
                self._score_values(batch)
                estimate_advantages(batch, self.config.advantages, rewards=rewards)
            for number in rng.permutation(update.num_minibatches):
                rows = (minibatches == int(number)).nonzero().flatten()
                result = self._update(batch, rows, old_values, update_actor)
                if num_updates == 0:
                    metrics["policy/first_ratio_max"] = result.get("ratio_max", 1.0)
                sums.add(result)
                num_updates += 1
                if update_actor and update.target_kl is not None:
                    # All-reduced, so every rank stops at the same update.
                    stopped = result["kl_proximal_k3_sum"] / max(result["num_tokens"], 1) > update.target_kl
                    if stopped:
                        break
            if stopped:
                break
        metrics["policy/early_stop"] = float(stopped)
        skipped = self.actor_optimizer.num_skipped + self.critic_optimizer.num_skipped - skipped
        metrics["batch/skipped_updates"] = float(skipped)
        return metrics | update_metrics(sums, num_updates)

    def score(self, batch: Batch) -> None:
        """Fills proximal (and reference) log-probabilities, values and bootstrap values, without gradients."""
        with torch.no_grad():
            rows = torch.arange(batch.size, device=self.device)
            for micro in self._microbatches(batch, rows):
                logprobs, _ = self._actor_forward(self.actor, batch, micro, with_entropy=False)
                _store(batch.proximal_logprobs, micro, logprobs)
            if self.reference is not None:
                batch.ref_logprobs = torch.zeros_like(batch.proximal_logprobs)
                for micro in self._microbatches(batch, rows):
                    logprobs, _ = self._actor_forward(self.reference, batch, micro, with_entropy=False)
                    _store(batch.ref_logprobs, micro, logprobs)
        self._score_values(batch)

    def _score_values(self, batch: Batch) -> None:
        batch.values = torch.zeros_like(batch.values)
        batch.bootstrap_value = torch.zeros_like(batch.bootstrap_value)
        with torch.no_grad():
            for micro in self._microbatches(batch, torch.arange(batch.size, device=self.device)):
                values, after = self._critic_forward(batch, micro)
                if micro.numel():
                    _store(batch.values, micro, values)
                    batch.bootstrap_value[micro] = torch.where(batch.terminated[micro], 0.0, after)

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

    def _update(self, batch: Batch, rows: Tensor, old_values: Tensor, update_actor: bool) -> dict[str, float]:
        """One optimizer update of actor and critic on a minibatch. Metrics are sums over all ranks."""
        config = self.config.policy_loss
        loss_mask = batch.loss_mask[rows]
        counts = all_reduce_sum(torch.stack([loss_mask.sum(), loss_mask.any(dim=1).sum()]).double())
        counted: Any = {"num_tokens": counts[0], "num_sequences": counts[1], "norm_length": self.context_length}
        advantages, weights = batch.advantages, self._importance_weights(batch)
        if self.config.advantages.whiten == "minibatch":
            advantages = self._whitened(batch, rows)
        sums = MetricSums(self.device)
        for micro in self._microbatches(batch, rows):
            if update_actor:
                mask = self._mask(batch, micro)
                logprobs, entropy = self._actor_forward(self.actor, batch, micro)
                loss, metrics = policy_loss(
                    logprobs,
                    _rows(batch.proximal_logprobs, micro, mask),
                    _rows(advantages, micro, mask),
                    mask,
                    clip_low=config.clip_low,
                    clip_high=config.clip_high,
                    dual_clip=config.dual_clip,
                    aggregation=config.aggregation,
                    weights=None if weights is None else _rows(weights, micro, mask),
                    **counted,
                )
                bonus = aggregate(entropy, mask, aggregation=config.aggregation, **counted)
                (loss - config.entropy_coefficient * bonus).backward()
                entropy_sum = torch.where(mask, entropy, 0.0).sum()
                sums.add({**metrics, "policy_loss_sum": loss, "entropy_sum": entropy_sum})
            mask = self._mask(batch, micro)
            values, _ = self._critic_forward(batch, micro)
            loss, metrics = value_loss(
                values,
                _rows(old_values, micro, mask),
                _rows(batch.value_targets, micro, mask),
                mask,
                clip=self.config.critic.value_clip,
                aggregation=config.aggregation,
                **counted,
            )
            loss.backward()
            sums.add({f"value_{name}": value for name, value in metrics.items()} | {"value_loss_sum": loss})
        reduced = sums.reduce()
        if update_actor:
            reduced["actor_grad_norm"] = self.actor_optimizer.step()
        reduced["critic_grad_norm"] = self.critic_optimizer.step()
        return reduced

    def _importance_weights(self, batch: Batch) -> Tensor | None:
        """Weights for the gap between the sampling probabilities and the trainer's, [B, T]; None where switched off."""
        config = self.config.policy_loss
        if config.importance == "none":
            return None
        if config.importance == "tis":
            return tis_weights(
                batch.proximal_logprobs, batch.behavior_logprobs, batch.loss_mask, cap=config.importance_cap
            )
        return icepop_weights(batch.proximal_logprobs, batch.behavior_logprobs, batch.loss_mask)

    # -- forward passes -----------------------------------------------------------------------------------------------

    def _distribute(self, samples: Sequence[Sample], num_minibatches: int, seed: int) -> tuple[Batch, Tensor]:
        """The share of the global batch that this rank computes, and the minibatch of each of its rows."""
        gathered: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(gathered, [(sample.index, sample.length) for sample in samples])
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

    def _tokens(self, batch: Batch, micro: Tensor) -> Tensor:
        """Token ids of some rows, cropped to the longest. An empty micro-batch computes on a dummy row: its rank must
        take part in the collectives of the others."""
        if not micro.numel():
            return torch.zeros(1, 2, dtype=torch.int64, device=self.device)
        return batch.token_ids[micro, : int(batch.lengths[micro].max())]

    def _mask(self, batch: Batch, micro: Tensor) -> Tensor:
        if not micro.numel():
            return torch.zeros(1, 2, dtype=torch.bool, device=self.device)
        return batch.loss_mask[micro, : int(batch.lengths[micro].max())]

    def _actor_forward(
        self, actor: Any, batch: Batch, micro: Tensor, *, with_entropy: bool = True, temperature: float | None = None
    ) -> tuple[Tensor, Tensor]:
        """Log-probabilities and entropies of the action tokens of some rows, [b, t], 0 elsewhere."""
        token_ids = self._tokens(batch, micro)
        action_mask = torch.zeros_like(token_ids, dtype=torch.bool)
        if micro.numel():
            action_mask = batch.action_mask[micro, : token_ids.shape[1]]
        rows, cols = action_mask.nonzero(as_tuple=True)
        supports = None if batch.supports is None or not micro.numel() else batch.supports[micro][rows, cols]
        logprobs, entropies = actor(
            token_ids,
            rows,
            cols,
            temperature=self.config.rollout.temperature if temperature is None else temperature,
            supports=supports,
            with_entropy=with_entropy,
        )
        empty = logprobs.new_zeros(token_ids.shape)
        return empty.index_put((rows, cols), logprobs), empty.index_put((rows, cols), entropies)

    def _critic_forward(self, batch: Batch, micro: Tensor) -> tuple[Tensor, Tensor]:
        """V of the state before each token, [b, t], and V of the state after the last one, [b]."""
        after_each = self.critic(self._tokens(batch, micro))
        before_each = torch.cat([torch.zeros_like(after_each[:, :1]), after_each[:, :-1]], dim=1)
        if not micro.numel():
            return before_each, after_each[:, -1]
        return before_each, after_each.gather(1, batch.lengths[micro, None] - 1).squeeze(1)

    def _whitened(self, batch: Batch, rows: Tensor) -> Tensor:
        """Advantages with those of some rows whitened among themselves, over all ranks."""
        out = batch.advantages.clone()
        out[rows] = whiten(batch.advantages[rows], batch.loss_mask[rows])
        return out


def _rows(tensor: Tensor, micro: Tensor, like: Tensor) -> Tensor:
    """Some rows of [B, T], cropped to the width of `like`; a dummy row for an empty micro-batch."""
    if not micro.numel():
        return torch.zeros(like.shape, dtype=tensor.dtype, device=tensor.device)
    return tensor[micro, : like.shape[1]]


def _store(tensor: Tensor, micro: Tensor, values: Tensor) -> None:
    """Writes [b, t] into some rows of [B, T]."""
    if micro.numel():
        tensor[micro, : values.shape[1]] = values.to(tensor.dtype)
