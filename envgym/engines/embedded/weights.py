"""The shape and the fused parameters of a llama-like decoder, from a Hugging Face configuration and state dict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch

from envgym.errors import ModelError

if TYPE_CHECKING:
    from transformers import LlamaConfig, PreTrainedConfig

FAMILIES = ("llama", "qwen2", "qwen3")
_ROPE_TYPES = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True)
class DecoderShape:
    """What the decoder needs to know of a Hugging Face configuration; sizes in elements."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    context_length: int
    norm_eps: float
    qk_norm: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    tied: bool
    inverse_frequencies: torch.Tensor
    """float32 [head_dim / 2]: radians per position of each rotary pair."""
    rope_scaling: float

    @classmethod
    def from_config(cls, config: PreTrainedConfig) -> DecoderShape:
        """Reads a configuration of one of the supported families.

        Raises:
            ModelError: The family, or something the configuration asks for, is not supported by the embedded engine.
        """
        family = config.model_type
        if family not in FAMILIES:
            raise _unsupported(f"model family '{family}'")
        if config.hidden_act != "silu":
            raise _unsupported(f"activation '{config.hidden_act}'")
        if any(kind != "full_attention" for kind in getattr(config, "layer_types", None) or ()):
            raise _unsupported("sliding-window attention")
        if config.rope_parameters["rope_type"] not in _ROPE_TYPES:
            raise _unsupported(f"rope type '{config.rope_parameters['rope_type']}'")
        from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

        rotary = LlamaRotaryEmbedding(cast("LlamaConfig", config))  # the families share it
        attention_bias = bool(getattr(config, "attention_bias", False))
        return cls(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_layers=config.num_hidden_layers,
            num_heads=config.num_attention_heads,
            num_kv_heads=config.num_key_value_heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
            context_length=config.max_position_embeddings,
            norm_eps=config.rms_norm_eps,
            qk_norm=family == "qwen3",
            qkv_bias=family == "qwen2" or attention_bias,
            output_bias=family != "qwen2" and attention_bias,
            mlp_bias=bool(getattr(config, "mlp_bias", False)),
            tied=bool(config.tie_word_embeddings),
            inverse_frequencies=rotary.inv_freq.float().clone(),
            rope_scaling=float(rotary.attention_scaling),
        )

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Hugging Face name and shape of every parameter; `lm_head.weight` only where it is not tied."""
        queries, keys = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        hidden, inner = self.hidden_size, self.intermediate_size
        shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (self.vocab_size, hidden)}
        for layer in range(self.num_layers):
            prefix = f"model.layers.{layer}."
            shapes[prefix + "input_layernorm.weight"] = (hidden,)
            shapes[prefix + "post_attention_layernorm.weight"] = (hidden,)
            for name, size in (("q", queries), ("k", keys), ("v", keys)):
                shapes[f"{prefix}self_attn.{name}_proj.weight"] = (size, hidden)
                if self.qkv_bias:
                    shapes[f"{prefix}self_attn.{name}_proj.bias"] = (size,)
            shapes[prefix + "self_attn.o_proj.weight"] = (hidden, queries)
            if self.output_bias:
                shapes[prefix + "self_attn.o_proj.bias"] = (hidden,)
            if self.qk_norm:
                shapes[prefix + "self_attn.q_norm.weight"] = (self.head_dim,)
                shapes[prefix + "self_attn.k_norm.weight"] = (self.head_dim,)
            for name, size, width in (("gate", inner, hidden), ("up", inner, hidden), ("down", hidden, inner)):
                shapes[f"{prefix}mlp.{name}_proj.weight"] = (size, width)
                if self.mlp_bias:
                    shapes[f"{prefix}mlp.{name}_proj.bias"] = (size,)
        shapes["model.norm.weight"] = (hidden,)
        if not self.tied:
            shapes["lm_head.weight"] = (self.vocab_size, hidden)
        return shapes


@dataclass(frozen=True)
class LayerWeights:
    """One layer; matrices are stored [in, out], heads in the order queries, keys, values (see `fuse`)."""

    input_norm: torch.Tensor
    qkv: torch.Tensor
    qkv_bias: torch.Tensor | None
    head_norms: torch.Tensor | None
    """[num_heads + num_kv_heads, head_dim]: weights of the query and key norms (qwen3)."""
    output: torch.Tensor
    output_bias: torch.Tensor | None
    mlp_norm: torch.Tensor
    gate_up: torch.Tensor
    gate_up_bias: torch.Tensor | None
    down: torch.Tensor
    down_bias: torch.Tensor | None


@dataclass(frozen=True)
class DecoderWeights:
    """All parameters; `head` is [vocab_size, hidden_size] and the same tensor as `embedding` where tied."""

    embedding: torch.Tensor
    layers: tuple[LayerWeights, ...]
    norm: torch.Tensor
    head: torch.Tensor


def fuse(
    shape: DecoderShape, tensors: Mapping[str, torch.Tensor], *, dtype: torch.dtype, device: torch.device
) -> DecoderWeights:
    """Copies a state dict into fused weights.

    Query, key and value projections become one matrix, gate and up another. The dimensions of query and key heads are
    reordered so that each rotary pair (i, i + head_dim / 2) is adjacent and a rotation is one complex product; scores
    do not change, since both sides are reordered alike.

    Args:
        shape: The decoder's shape; `tensors` must hold every name of `shape.parameter_shapes()` in its shape.
        tensors: Parameters by Hugging Face name; never aliased by the result.
        dtype: Type of the result.
        device: Device of the result.
    """
    half = shape.head_dim // 2
    pairs = torch.arange(shape.head_dim).view(2, half).T.flatten()

    def take(name: str) -> torch.Tensor:
        return tensors[name].detach().to(device=device, dtype=dtype)

    def by_pairs(x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(0, (-1, shape.head_dim))[:, pairs.to(x.device)].flatten(0, 1)

    def layer(prefix: str) -> LayerWeights:
        attention, mlp = prefix + "self_attn.", prefix + "mlp."

        def qkv(kind: str) -> torch.Tensor:
            q, k, v = (take(f"{attention}{name}_proj.{kind}") for name in "qkv")
            return torch.cat([by_pairs(q), by_pairs(k), v])

        def gate_up(kind: str) -> torch.Tensor:
            return torch.cat([take(f"{mlp}gate_proj.{kind}"), take(f"{mlp}up_proj.{kind}")])

        head_norms = None
        if shape.qk_norm:
            q_norm, k_norm = (by_pairs(take(f"{attention}{name}_norm.weight")) for name in "qk")
            head_norms = torch.cat([q_norm.expand(shape.num_heads, -1), k_norm.expand(shape.num_kv_heads, -1)])
        return LayerWeights(
            input_norm=take(prefix + "input_layernorm.weight").clone(),
            qkv=qkv("weight").T.contiguous(),
            qkv_bias=qkv("bias") if shape.qkv_bias else None,
            head_norms=head_norms,
            output=take(attention + "o_proj.weight").T.contiguous(),
            output_bias=take(attention + "o_proj.bias").clone() if shape.output_bias else None,
            mlp_norm=take(prefix + "post_attention_layernorm.weight").clone(),
            gate_up=gate_up("weight").T.contiguous(),
            gate_up_bias=gate_up("bias") if shape.mlp_bias else None,
            down=take(mlp + "down_proj.weight").T.contiguous(),
            down_bias=take(mlp + "down_proj.bias").clone() if shape.mlp_bias else None,
        )

    with torch.inference_mode():
        embedding = take("model.embed_tokens.weight").clone()
        return DecoderWeights(
            embedding=embedding,
            layers=tuple(layer(f"model.layers.{index}.") for index in range(shape.num_layers)),
            norm=take("model.norm.weight").clone(),
            head=embedding if shape.tied else take("lm_head.weight").clone(),
        )


def _unsupported(what: str) -> ModelError:
    return ModelError(
        f"The embedded engine does not support {what}: it runs {', '.join(FAMILIES)} decoders with full attention; "
        "serve this model with SGLang and use SGLangPolicy instead."
    )
