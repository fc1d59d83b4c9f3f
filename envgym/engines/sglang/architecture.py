"""What a model computes besides its weights: settings in which models with weights of the same shapes may differ."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from envgym.errors import ModelError

_FIELDS = (
    *("model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "head_dim", "hidden_act", "hidden_activation", "activation_function"),
    *("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "tie_word_embeddings", "attention_bias", "mlp_bias"),
    *("rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor", "layer_types", "sliding_window"),
    *("use_sliding_window", "attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar"),
    *("scale_embedding", "embedding_multiplier", "logits_scaling", "residual_multiplier", "attention_multiplier"),
)
"""Entries of `config.json` that change what a forward pass gives."""

_log = logging.getLogger(__name__)


def architecture_of(folder: str | Path) -> dict[str, Any] | None:
    """The settings of a folder's model, defaults filled in; None where they cannot be read here."""
    if not (Path(folder) / "config.json").is_file():
        return None
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True).get_text_config().to_dict()
    except Exception:  # a model that this version of transformers does not know
        _log.debug("the configuration in %s is not known", folder, exc_info=True)
        return None
    return {name: config[name] for name in _FIELDS if name in config}


def check_architecture(url: str, served: Mapping[str, Any] | None, expected: Mapping[str, Any] | None) -> None:
    """Compares the settings of a server's model with those of another; what is unknown is not compared.

    Raises:
        ModelError: They differ: with the same weights the two would give other probabilities.
    """
    if served is None or expected is None or served == expected:
        return
    name = next(name for name in _FIELDS if served.get(name) != expected.get(name))
    raise ModelError(
        f"{url} serves a model whose {name} is {served.get(name)}, expected {expected.get(name)}; start it with the "
        "model that is trained"
    )
