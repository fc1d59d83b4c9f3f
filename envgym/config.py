"""The configuration of a training run: one frozen tree, checked when it is made, written into every run folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator


class Section(BaseModel):
    """Base of every section: unknown fields are errors, nothing changes after construction."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class NewModel(Section):
    """A small random Qwen3 model with a byte-level tokenizer, made in the run folder."""

    kind: Literal["new"] = "new"
    hidden_size: int = Field(64, ge=16, description="Width of the residual stream.")
    num_layers: int = Field(2, ge=1, description="Decoder layers.")
    num_heads: int = Field(4, ge=1, description="Query heads; divides hidden_size.")
    num_kv_heads: int = Field(2, ge=1, description="Key and value heads; divides num_heads.")
    head_dim: int | None = Field(None, ge=2, description="Size of one head, even; None is hidden_size / num_heads.")
    context_length: int = Field(512, ge=32, description="Most tokens of an episode.")
    words: tuple[str, ...] = Field(
        (), description="Words that are one token each beside the bytes, for example tool names."
    )


class FolderModel(Section):
    """A model folder in Hugging Face format."""

    kind: Literal["folder"] = "folder"
    path: Path = Field(description="Folder with config.json, safetensors and tokenizer files.")


class EmbeddedPolicyConfig(Section):
    """The policy generates in the training process itself."""

    kind: Literal["embedded"] = "embedded"
    beside_learner: ClassVar[bool] = False
    """Whether it can sample while the learner works."""


class SGLangPolicyConfig(Section):
    """The policy is served by SGLang: by servers that run already, or by one that each rank starts."""

    kind: Literal["sglang"] = "sglang"
    urls: tuple[str, ...] = Field(
        (), description="Addresses of servers that run already, the same on every rank; none starts one for each rank."
    )
    weight_sync: Literal["tensors", "distributed", "disk"] = Field(
        "tensors",
        description="How new weights get there: over HTTP, through a process group of their own (gloo or NCCL), or as "
        "files that the servers can read.",
    )
    dtype: Literal["float32", "bfloat16"] | None = Field(
        None, description="Arithmetic of servers that are started; None is the run's."
    )
    colocated: bool = Field(
        False,
        description="Servers that are started share the ranks' devices: their memory is released while the learner "
        "works, and the learner's is while they sample.",
    )
    mem_fraction: float | None = Field(
        None, gt=0, lt=1, description="Share of the device's memory for weights and cache; None leaves it to SGLang."
    )
    max_total_tokens: int | None = Field(
        None, ge=1, description="Tokens in the cache of a server on the CPU; None fits the run's concurrency."
    )
    startup_timeout_s: float = Field(600.0, gt=0, description="How long a server may take to start.")
    generate_timeout_s: float = Field(600.0, gt=0, description="How long one turn may take before it is asked again.")
    recovery_timeout_s: float = Field(
        60.0, ge=0, description="How long a turn waits for a server to come back when none answers."
    )

    @property
    def beside_learner(self) -> bool:
        """Whether it can sample while the learner works."""
        return not self.colocated

    @model_validator(mode="after")
    def _colocated_servers_are_started(self) -> SGLangPolicyConfig:
        if self.urls and self.colocated:
            raise ValueError("policy.colocated is for servers that the run starts; leave policy.urls empty")
        return self


class EnvConfig(Section):
    """What is trained on."""

    id: str = Field(description="Id of a registered environment.")
    max_turns: int | None = Field(
        None, ge=1, description="Turn limit of training episodes; None keeps the registered one."
    )
    kwargs: dict[str, Any] = Field(default_factory=dict, description="Arguments of the environment's constructor.")


class RolloutConfig(Section):
    """How episodes are collected."""

    episodes_per_iteration: int = Field(128, ge=1, description="Episodes of one iteration on all ranks together.")
    max_turn_tokens: int = Field(
        256, ge=1, lt=2**31, strict=True, description="Most sampled tokens of one turn; a turn that reaches it is cut."
    )
    overlong_penalty: float = Field(
        0.0,
        ge=0,
        description="Taken off the reward of a training turn that is cut at max_turn_tokens (component overlong). A "
        "cut is bootstrapped, so without a penalty a policy may learn to ramble on to it (compare DAPO, section 3.4).",
    )
    temperature: float = Field(
        1.0,
        gt=0,
        le=1e6,
        strict=True,
        description="Divides the logits, in sampling and in the learner; from 0.001, below which logits overflow.",
    )
    top_k: int = Field(0, ge=0, lt=2**31, strict=True, description="Keep the k most probable tokens; 0 keeps all.")
    top_p: float = Field(
        1.0, ge=1e-6, le=1, strict=True, description="Keep the most probable tokens up to this probability."
    )
    concurrency: int = Field(256, ge=1, description="Most episodes that run at the same time on one rank.")
    num_threads: int = Field(4, ge=1, description="Worker threads for environment steps.")
    step_timeout_s: float | None = Field(
        600.0,
        gt=0,
        description="Most seconds of one reset or step; the episode of one that takes longer fails. None is no limit.",
    )
    max_attempts: int = Field(
        8,
        ge=1,
        description="How often an episode of training is tried, each time with another seed, before its failures end "
        "the run. After the third failure there are growing pauses, eight seconds in all with 8 attempts, so that an "
        "outage that short is survived; evaluation tries once, since another seed would be another task.",
    )
    max_policy_lag: int = Field(
        0,
        ge=0,
        description="How many updates the weights that sample may be behind the ones that are trained. 0 collects and "
        "trains in turn; above it the next iterations' episodes are played while the learner works.",
    )
    deterministic: bool = Field(
        True,
        description="What an episode samples does not depend on timing: the engine waits for every running episode's "
        "environment before each token. Turn off where environments are slow.",
    )

    @field_validator("temperature")
    @classmethod
    def _temperature_can_be_sampled_at(cls, value: float) -> float:
        if value < 0.001:
            raise ValueError("below 0.001 play is greedy and nothing can be learned from it; use a larger temperature")
        return value


class WarmStartConfig(Section):
    """Supervised training on an agent's play before reinforcement learning."""

    agent: str = Field("demonstrator", description="Name of the agent whose trajectories are imitated.")
    num_episodes: int = Field(6000, ge=1, description="Trajectories to collect on all ranks together.")
    max_turns: int | None = Field(
        None,
        ge=1,
        description="Turn limit of the demonstrations; None is that of training. Where evaluation episodes are longer "
        "than training ones, long demonstrations let the policy see contexts of that length.",
    )
    num_epochs: int = Field(1, ge=1, description="Passes over them.")
    batch_episodes: int = Field(64, ge=1, description="Trajectories of one update on all ranks together.")
    learning_rate: float = Field(
        2e-3, ge=0, description="Peak; linear warm-up over 5 % of the updates, then cosine to zero."
    )


class OptimizerConfig(Section):
    """AdamW and its schedule."""

    learning_rate: float = Field(1e-6, ge=0, description="Peak learning rate (VAPO: actor 1e-6, critic 2e-6).")
    schedule: Literal["constant", "linear", "cosine"] = Field(
        "constant", description="Decay over the run after warm-up."
    )
    warmup_updates: int = Field(0, ge=0, description="Updates of linear warm-up.")
    weight_decay: float = Field(0.0, ge=0, description="Decoupled weight decay.")
    beta1: float = Field(0.9, ge=0, lt=1, description="Decay of the first moment.")
    beta2: float = Field(0.999, ge=0, lt=1, description="Decay of the second moment.")
    max_grad_norm: float = Field(1.0, gt=0, description="Gradients are scaled down to this global norm.")


class EstimatorConfig(Section):
    """What holds for advantages of every kind."""

    whiten: Literal["batch", "minibatch", "none"] = Field("batch", description="Scope of advantage whitening.")
    recompute_each_epoch: bool = Field(False, description="Recompute values and advantages with the updated critic.")


class GAEEstimatorConfig(EstimatorConfig):
    """Generalised advantage estimation over action tokens: from rewards and values to advantages and value targets."""

    kind: Literal["gae"] = "gae"
    needs_critic: ClassVar[bool] = True
    gamma: float = Field(1.0, ge=0, le=1, description="Discount.")
    discount_per: Literal["turn", "token"] = Field(
        "turn", description="Where gamma applies; per turn spares wordy turns."
    )
    gae_lambda_policy: float = Field(0.95, ge=0, le=1, description="Lambda of the policy's advantages.")
    gae_lambda_value: float = Field(1.0, ge=0, le=1, description="Lambda of the critic's targets (VC-PPO: 1).")
    gae_length_alpha: float | None = Field(
        None,
        gt=0,
        description="Length-adaptive policy lambda 1 - 1/(alpha*l) (VAPO: .05); None uses gae_lambda_policy.",
    )
    gae_lambda_min: float = Field(0.0, ge=0, le=1, description="Floor of the length-adaptive lambda.")


class CustomEstimatorConfig(EstimatorConfig):
    """An estimator that a script handed to `train`, which writes this section."""

    kind: Literal["custom"] = "custom"
    name: str = Field(description="Where its class is: module:Class, or script.py:Class.")
    needs_critic: bool = Field(description="Whether the run has a critic.")


class LossConfig(Section):
    """What holds for policy losses of every kind."""

    entropy_coefficient: float = Field(0.0, description="Weight of the entropy bonus.")
    aggregation: Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"] = Field(
        "token-mean", description="How token losses become one number; counts are global."
    )
    importance: Literal["none", "tis", "icepop"] = Field(
        "none", description="Correction for the gap between serving and training log-probabilities."
    )
    importance_cap: float = Field(2.0, gt=0, description="Largest weight of truncated importance sampling.")


class PPOClipLossConfig(LossConfig):
    """The clipped policy objective."""

    kind: Literal["ppo_clip"] = "ppo_clip"
    clip_low: float = Field(0.2, ge=0, description="Lower clip of the ratio, 1 - clip_low.")
    clip_high: float = Field(0.2, ge=0, description="Upper clip, 1 + clip_high; clip-higher is .28 (DAPO).")
    dual_clip: float | None = Field(None, gt=1, description="Cap of the loss for negative advantages (usually 3).")


class CustomLossConfig(LossConfig):
    """A loss that a script handed to `train`, which writes this section."""

    kind: Literal["custom"] = "custom"
    name: str = Field(description="Where its class or function is: module:name, or script.py:name.")


class ValuePretrainingConfig(Section):
    """Critic-only iterations at the start, on Monte-Carlo returns of the frozen policy (VC-PPO)."""

    max_iterations: int = Field(10, ge=1, description="Most iterations to spend.")
    explained_variance: float = Field(
        0.5, le=1, description="Stop once the critic explains this share of the variance."
    )


class CriticConfig(Section):
    """The value model: a trunk of its own, initialised from the (warm) policy, with a scalar head."""

    optimizer: OptimizerConfig = Field(default_factory=lambda: OptimizerConfig(learning_rate=2e-6))
    value_clip: float | None = Field(None, gt=0, description="Clip of the value change in one iteration; None is off.")
    head_init: Literal["zero", "orthogonal"] = Field("zero", description="Initial value head, the same on every rank.")
    pretraining: ValuePretrainingConfig | None = Field(None, description="Value pretraining; None skips it.")


class KLConfig(Section):
    """Penalty on the drift from the frozen starting policy, taken off the reward of each action token."""

    beta: float = Field(0.01, gt=0, description="Weight of the penalty.")
    estimator: Literal["k1", "k2", "k3"] = Field("k1", description="Estimator of the KL divergence.")
    target: float | None = Field(None, gt=0, description="Adapt beta towards this KL per token; None keeps it fixed.")
    horizon: float = Field(10_000, gt=0, description="Trajectories over which beta adapts.")


class UpdateConfig(Section):
    """How a batch is used."""

    num_epochs: int = Field(2, ge=1, description="Passes over the batch.")
    num_minibatches: int = Field(4, ge=1, description="Optimizer updates of one pass.")
    max_microbatch_tokens: int = Field(16_384, ge=1, description="Most padded tokens of one forward pass on a rank.")
    target_kl: float | None = Field(
        None, gt=0, description="Stop the passes once KL(proximal || current) exceeds this."
    )


class EvaluationConfig(Section):
    """Play on held-out seeds, sampled and greedy, before and after training."""

    episodes: int = Field(256, ge=1, description="Episodes of each kind of play.")
    every: int | None = Field(None, ge=1, description="Evaluate every so many iterations as well.")
    max_turns: int | None = Field(
        None, ge=1, description="Turn limit of evaluation episodes; None keeps the registered one."
    )


class CheckpointConfig(Section):
    """When state is saved. A run can be continued from any kept checkpoint."""

    every: int = Field(10, ge=1, description="Iterations between checkpoints; the last one is always saved.")
    keep: int = Field(2, ge=1, description="How many to keep.")


RENAMED_SECTIONS = {"advantages": "estimator", "policy_loss": "loss"}
"""Sections of earlier versions by their names of today."""


def stored_fields(text: bytes) -> dict[str, Any]:
    """The fields of a stored configuration, whichever version of envgym wrote it, in the sections of today.

    Raises:
        ValueError: The text is no JSON object.
    """
    try:
        stored = json.loads(text)
    except ValueError as error:
        raise ValueError(f"it is not valid JSON: {error}") from error
    if not isinstance(stored, dict):
        raise ValueError(f"a JSON object is expected, not {type(stored).__name__}")
    for old, new in RENAMED_SECTIONS.items():
        if old in stored and new not in stored:  # both at once no version wrote: it is refused as a new file would be
            stored[new] = stored.pop(old)
    return stored


class TrainConfig(Section):
    """A whole training run.

    A run with the same configuration and number of ranks gives the same metrics. Variants are made with
    `config.model_copy(update={...})` or, checked, with `TrainConfig(**{**config.model_dump(), ...})`.
    """

    run_dir: Path = Field(description="Folder of the run; new or empty unless a run is resumed.")
    env: EnvConfig
    model: Annotated[NewModel | FolderModel, Field(discriminator="kind")] = Field(default_factory=NewModel)
    renderer: str = Field("chatml", description="Chat format: chatml, or a name of the renderers package, or auto.")
    policy: Annotated[EmbeddedPolicyConfig | SGLangPolicyConfig, Field(discriminator="kind")] = Field(
        default_factory=EmbeddedPolicyConfig, description="What samples: the embedded engine, or SGLang servers."
    )
    num_iterations: int = Field(100, ge=0, description="Iterations of collection and update.")
    seed: int = Field(0, ge=0, lt=2**31, description="Seed of everything random in the run.")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="Auto takes CUDA where there is some.")
    dtype: Literal["float32", "float64", "bfloat16"] = Field(
        "float32", description="Arithmetic of learner and engine; with bfloat16 the trained weights stay float32."
    )
    torch_threads: int | None = Field(
        None, ge=1, description="Threads of torch in each process; 1 is fastest for small models."
    )
    rollout: RolloutConfig = Field(default_factory=RolloutConfig)
    warm_start: WarmStartConfig | None = Field(
        None, description="Supervised start; None begins with the model as it is."
    )
    actor: OptimizerConfig = Field(default_factory=OptimizerConfig)
    critic: CriticConfig = Field(default_factory=CriticConfig)
    estimator: Annotated[GAEEstimatorConfig | CustomEstimatorConfig, Field(discriminator="kind")] = Field(
        default_factory=GAEEstimatorConfig, description="From rewards and values to advantages."
    )
    loss: Annotated[PPOClipLossConfig | CustomLossConfig, Field(discriminator="kind")] = Field(
        default_factory=PPOClipLossConfig, description="What the policy minimises."
    )
    kl: KLConfig | None = Field(None, description="KL penalty against a frozen reference; None keeps no reference.")
    update: UpdateConfig = Field(default_factory=UpdateConfig)
    evaluation: EvaluationConfig = Field(default_factory=EvaluationConfig)
    checkpoint: CheckpointConfig = Field(default_factory=CheckpointConfig)

    @model_validator(mode="before")
    @classmethod
    def _sections_by_name(cls, data: Any) -> Any:
        """Refuses names of earlier versions, and lets a section of the default kind leave its kind out."""
        if not isinstance(data, dict):
            return data
        for old, new in RENAMED_SECTIONS.items():
            if old in data:
                raise ValueError(f"the section '{old}' is called '{new}' now")
        defaults = {"estimator": "gae", "loss": "ppo_clip"}
        kinds = {name: kind for name, kind in defaults.items() if isinstance(data.get(name), dict)}
        return data | {name: {"kind": kind, **data[name]} for name, kind in kinds.items()}

    @model_validator(mode="after")
    def _batch_fits(self) -> TrainConfig:
        if self.rollout.episodes_per_iteration < self.update.num_minibatches:
            raise ValueError(
                f"rollout.episodes_per_iteration ({self.rollout.episodes_per_iteration}) is smaller than "
                f"update.num_minibatches ({self.update.num_minibatches}); every minibatch needs an episode"
            )
        if self.rollout.max_policy_lag and not self.policy.beside_learner:
            raise ValueError(
                f"rollout.max_policy_lag ({self.rollout.max_policy_lag}) above 0 samples while the learner works: it "
                f"needs policy.kind 'sglang' with servers that are not colocated"
            )
        if self.critic.pretraining is not None and not self.estimator.needs_critic:
            raise ValueError("critic.pretraining needs a critic, and this estimator needs none; leave it out")
        kl = self.kl
        if kl is not None and kl.target is not None and self.rollout.episodes_per_iteration >= 5 * kl.horizon:
            raise ValueError(
                f"kl.horizon ({kl.horizon:g}) must be above a fifth of rollout.episodes_per_iteration "
                f"({self.rollout.episodes_per_iteration}), or the adaptive beta could turn negative"
            )
        warm = self.warm_start
        if warm is not None and warm.num_episodes < warm.batch_episodes:
            raise ValueError(
                f"warm_start.num_episodes ({warm.num_episodes}) is smaller than warm_start.batch_episodes "
                f"({warm.batch_episodes}); one update needs a batch"
            )
        return self
