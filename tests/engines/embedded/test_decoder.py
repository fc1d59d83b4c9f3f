"""The decoder's logits are those of transformers, for every family and every way of filling the cache."""

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, Qwen2Config, Qwen3Config

from envgym.engines.embedded import decoder as decoder_module
from envgym.engines.embedded.decoder import Decoder
from envgym.engines.embedded.weights import DecoderShape, fuse
from envgym.errors import ModelError

SIZES = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 160,
    "initializer_range": 0.3,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN_ROPE = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}
CONFIGS = {
    "llama": LlamaConfig(**SIZES),
    "llama with biases": LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True),
    "llama3 rope": LlamaConfig(**SIZES, rope_parameters=LLAMA3_ROPE),
    "yarn rope": LlamaConfig(**SIZES, rope_parameters=YARN_ROPE),
    # SmolLM2-135M in small: 9 query heads over 3 key heads, tied, rope theta 100 000.
    "smollm2": LlamaConfig(
        **SIZES | {"hidden_size": 72, "num_attention_heads": 9, "num_key_value_heads": 3},
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 100_000.0},
        rms_norm_eps=1e-5,
    ),
    "qwen2": Qwen2Config(**SIZES, tie_word_embeddings=True),
    "qwen3": Qwen3Config(**SIZES, head_dim=16),
    "qwen3 tied, one key head": Qwen3Config(
        **SIZES | {"num_key_value_heads": 1}, head_dim=8, tie_word_embeddings=True, attention_bias=True
    ),
}


def random_model(config, seed=0):
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config).float().eval()
    for name, parameter in model.named_parameters():  # norms and biases start as constants: make them matter
        if parameter.ndim == 1:
            torch.nn.init.uniform_(parameter, 0.5, 1.5) if "norm" in name else torch.nn.init.normal_(parameter, std=0.3)
    return model


def decoder_of(model):
    shape = DecoderShape.from_config(model.config)
    return Decoder(shape, fuse(shape, model.state_dict(), dtype=torch.float32, device=torch.device("cpu")))


@torch.no_grad()
def assert_logits_from(logits, model, ids, start):
    """The logits at the ids from `start` on are those of the transformers model."""
    want = model(torch.tensor([ids.tolist()])).logits[0, start:]
    assert want.abs().max() > 1, "the comparison would be empty"
    torch.testing.assert_close(logits, want, rtol=1e-4, atol=1e-4)


def feed(decoder, sequences, slots, starts, ends):
    """Decodes the given stretch of each sequence token by token; returns the logits after each step, by sequence."""
    logits = [[] for _ in sequences]
    for offset in range(max(e - s for s, e in zip(starts, ends, strict=True))):
        rows = [i for i in range(len(sequences)) if starts[i] + offset < ends[i]]
        at = np.array([starts[i] + offset for i in rows])
        tokens = np.array([sequences[i][p] for i, p in zip(rows, at, strict=True)])
        decoder.reserve(max(slots) + 1, int(at.max()) + 1)
        out = decoder.decode(tokens, at, np.array([slots[i] for i in rows]), int(at.max()) + 1)
        for i, row in zip(rows, out, strict=True):
            logits[i].append(row)
    return [torch.stack(rows) for rows in logits]


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_equal_those_of_transformers_after_ragged_prefill_and_decoding(name):
    model = random_model(CONFIGS[name])
    decoder = decoder_of(model)
    rng = np.random.default_rng(1)
    lengths, prefilled, slots = [9, 90, 31, 2], [5, 80, 30, 1], [3, 0, 4, 1]
    sequences = [rng.integers(0, 97, n) for n in lengths]
    decoder.reserve(5, 90)
    decoder.prefill([s[:n] for s, n in zip(sequences, prefilled, strict=True)], [0] * 4, slots)
    for i, logits in enumerate(feed(decoder, sequences, slots, prefilled, lengths)):
        assert_logits_from(logits, model, sequences[i], prefilled[i])


def test_a_prefill_on_top_of_a_cache_equals_one_from_nothing():
    model = random_model(CONFIGS["qwen3"])
    decoder = decoder_of(model)
    ids = np.random.default_rng(2).integers(0, 97, 60)
    decoder.reserve(2, 60)
    decoder.prefill([ids[:20], ids[:7]], [0, 0], [0, 1])
    decoder.prefill([ids[20:58], ids[7:59]], [20, 7], [0, 1])
    first, second = feed(decoder, [ids, ids], [0, 1], [58, 59], [60, 60])
    assert_logits_from(first, model, ids, 58)
    assert_logits_from(second, model, ids, 59)


def test_long_prompts_in_pieces_and_small_waves_change_nothing(monkeypatch):
    model = random_model(CONFIGS["llama"])
    ids = np.random.default_rng(3).integers(0, 97, (3, 100))
    monkeypatch.setattr(decoder_module, "_PIECE", 16)
    monkeypatch.setattr(decoder_module, "_MAX_SCORES", 6 * 16 * 100)
    decoder = decoder_of(model)
    decoder.reserve(3, 100)
    prefilled = [99, 50, 3]
    decoder.prefill([row[:n] for row, n in zip(ids, prefilled, strict=True)], [0, 0, 0], [0, 1, 2])
    fed = feed(decoder, ids, [0, 1, 2], prefilled, [n + 1 for n in prefilled])
    for row, n, logits in zip(ids, prefilled, fed, strict=True):
        assert_logits_from(logits, model, row[: n + 1], n)


def test_decoding_all_slots_in_place_equals_decoding_them_gathered():
    model = random_model(CONFIGS["qwen2"])
    ids = np.random.default_rng(4).integers(0, 97, (3, 30))
    tokens, at = ids[[0, 1, 2], [29, 10, 4]], np.array([29, 10, 4])
    results = []
    for slots in (None, np.arange(3)):
        decoder = decoder_of(model)
        decoder.reserve(3, 30)
        decoder.prefill([ids[0, :29], ids[1, :10], ids[2, :4]], [0, 0, 0], [0, 1, 2])
        results.append(decoder.decode(tokens, at, slots, 30))
    torch.testing.assert_close(results[0], results[1], rtol=1e-5, atol=1e-5)


def test_growing_the_cache_keeps_what_it_holds():
    model = random_model(CONFIGS["qwen3"])
    decoder = decoder_of(model)
    ids = np.random.default_rng(5).integers(0, 97, 150)
    decoder.reserve(1, 10)
    decoder.prefill([ids[:9]], [0], [0])
    small = decoder.capacity, decoder.num_slots
    decoder.reserve(20, 150)
    assert decoder.capacity > small[0] and decoder.num_slots > small[1]
    (logits,) = feed(decoder, [ids], [0], [9], [150])
    assert_logits_from(logits, model, ids, 9)


def test_the_expected_parameter_names_and_shapes_are_those_of_the_state_dict():
    for config in CONFIGS.values():
        model = random_model(config)
        state = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
        if config.tie_word_embeddings:
            state.pop("lm_head.weight")
        assert DecoderShape.from_config(config).parameter_shapes() == state


@pytest.mark.parametrize(
    ("config", "what"),
    [
        (GPT2Config(), "family 'gpt2'"),
        (Qwen2Config(**SIZES, use_sliding_window=True, max_window_layers=1), "sliding-window"),
        (LlamaConfig(**SIZES, hidden_act="gelu"), "activation 'gelu'"),
        (LlamaConfig(**SIZES, rope_parameters=YARN_ROPE | {"rope_type": "dynamic"}), "rope type 'dynamic'"),
    ],
)
def test_what_the_engine_cannot_run_is_refused_with_the_way_out(config, what):
    with pytest.raises(ModelError, match=rf"{what}.*llama, qwen2, qwen3.*SGLangPolicy"):
        DecoderShape.from_config(config)
