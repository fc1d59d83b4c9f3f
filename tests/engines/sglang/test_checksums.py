"""Names and checksums of a served model, computed without a server."""

from __future__ import annotations

import hashlib

import pytest
import torch

from envgym.engines.sglang.checksums import ExpectedWeights, gpu_hash, served_parameters
from envgym.errors import WeightSyncError

LAYER = "model.layers.0."
SHAPES = {
    "model.embed_tokens.weight": (70, 8),
    LAYER + "self_attn.q_proj.weight": (16, 8),
    LAYER + "self_attn.k_proj.weight": (4, 8),
    LAYER + "self_attn.v_proj.weight": (4, 8),
    LAYER + "self_attn.q_proj.bias": (16,),
    LAYER + "self_attn.k_proj.bias": (4,),
    LAYER + "self_attn.v_proj.bias": (4,),
    LAYER + "self_attn.o_proj.weight": (8, 16),
    LAYER + "mlp.gate_proj.weight": (12, 8),
    LAYER + "mlp.up_proj.weight": (12, 8),
    LAYER + "mlp.down_proj.weight": (8, 12),
    LAYER + "input_layernorm.weight": (8,),
    "lm_head.weight": (70, 8),
}
HELD = {LAYER + f"self_attn.{name}" for name in ("qkv_proj.weight", "qkv_proj.bias", "o_proj.weight")} | {
    *(LAYER + f"{name}.weight" for name in ("mlp.gate_up_proj", "mlp.down_proj", "input_layernorm")),
    *("model.embed_tokens.weight", "lm_head.weight"),
}


def weights() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


def digest(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.contiguous().numpy().tobytes()).hexdigest()[:16]


def served(tensors: dict[str, torch.Tensor], rank: int = 0, ranks: int = 1, kv_ranks: int = 1) -> dict[str, str]:
    """What a rank of a server with these weights answers, spelled out."""
    attention, mlp = LAYER + "self_attn.", LAYER + "mlp."

    def rows(name: str, count: int = ranks) -> torch.Tensor:
        return tensors[name].chunk(count)[rank * count // ranks]

    def columns(name: str) -> torch.Tensor:
        return tensors[name].chunk(ranks, dim=1)[rank]

    def vocabulary(name: str) -> torch.Tensor:
        return torch.cat([tensors[name], torch.zeros(128 - 70, 8)]).chunk(ranks)[rank]

    def qkv(kind: str) -> torch.Tensor:
        keys = [rows(f"{attention}{part}_proj.{kind}", kv_ranks) for part in "kv"]
        return torch.cat([rows(f"{attention}q_proj.{kind}"), *keys])

    content = {
        "model.embed_tokens.weight": vocabulary("model.embed_tokens.weight"),
        attention + "qkv_proj.weight": qkv("weight"),
        attention + "qkv_proj.bias": qkv("bias"),
        attention + "o_proj.weight": columns(attention + "o_proj.weight"),
        mlp + "gate_up_proj.weight": torch.cat([rows(mlp + "gate_proj.weight"), rows(mlp + "up_proj.weight")]),
        mlp + "down_proj.weight": columns(mlp + "down_proj.weight"),
        LAYER + "input_layernorm.weight": tensors[LAYER + "input_layernorm.weight"],
        "lm_head.weight": vocabulary("lm_head.weight"),
    }
    return {name: digest(tensor) for name, tensor in content.items()}


def expected(tensors: dict[str, torch.Tensor], **settings: int) -> ExpectedWeights:
    weights = ExpectedWeights(SHAPES, HELD, **settings)
    for name, tensor in tensors.items():
        weights.take(name, tensor, tensor.dtype)
    weights.check_complete()
    return weights


def test_query_key_and_value_are_one_parameter_there_in_this_order():
    names = [f"a.{part}_proj.weight" for part in ("v", "k", "q", "up", "gate", "o")]
    assert served_parameters(names) == {
        "a.qkv_proj.weight": ("a.q_proj.weight", "a.k_proj.weight", "a.v_proj.weight"),
        "a.gate_up_proj.weight": ("a.gate_proj.weight", "a.up_proj.weight"),
        "a.o_proj.weight": ("a.o_proj.weight",),
    }


@pytest.mark.parametrize(("ranks", "kv_ranks"), [(1, 1), (2, 2), (2, 1), (4, 2), (4, 4)])
def test_ranks_hold_their_parts_of_fused_and_padded_tensors_in_any_order_of_arrival(ranks, kv_ranks):
    tensors = weights()
    answers = [served(tensors, rank, ranks, kv_ranks) for rank in range(ranks)]
    for order in (1, -1):
        expected(dict(list(tensors.items())[::order]), num_ranks=ranks).check_served(answers)
    if ranks > 1:
        with pytest.raises(WeightSyncError, match="are not what was sent"):
            expected(tensors, num_ranks=ranks).check_served(answers[::-1])


@pytest.mark.parametrize("name", list(SHAPES))
def test_one_changed_number_anywhere_is_noticed(name):
    tensors = weights()
    answer = served(tensors)
    tensors[name].view(-1)[-1] += 1e-6
    with pytest.raises(WeightSyncError, match="1 of the server's 8 parameters are not what was sent"):
        expected(tensors).check_served([answer])


def test_a_tied_head_is_the_embedding_whether_the_server_keeps_it_twice_or_once():
    shapes = {"model.embed_tokens.weight": (64, 8)}
    embedding = torch.randn(64, 8)
    for held in (["model.embed_tokens.weight"], ["model.embed_tokens.weight", "lm_head.weight"]):
        tied = ExpectedWeights(shapes, held)
        tied.take("model.embed_tokens.weight", embedding, embedding.dtype)
        tied.check_served([{name: digest(embedding) for name in held}])
        with pytest.raises(WeightSyncError, match="are not what was sent"):
            tied.check_served([dict.fromkeys(held, digest(embedding + 1))])


def test_a_head_that_the_server_ties_is_an_error():
    with pytest.raises(WeightSyncError, match=r"would ignore them \(the first is 'lm_head\.weight'\)"):
        ExpectedWeights(SHAPES, HELD - {"lm_head.weight"})


def test_parameters_come_once_whole_and_announced():
    update = ExpectedWeights(SHAPES, HELD)
    name = "lm_head.weight"
    with pytest.raises(WeightSyncError, match="was not announced"):
        update.take("lm_head.bias", torch.zeros(70), torch.float32)
    with pytest.raises(WeightSyncError, match=r"has shape \(69, 8\), expected \(70, 8\)"):
        update.take(name, torch.zeros(69, 8), torch.float32)
    assert update.take(name, torch.zeros(70, 8), torch.bfloat16).dtype == torch.bfloat16
    with pytest.raises(WeightSyncError, match="arrived twice"):
        update.take(name, torch.zeros(70, 8), torch.float32)
    with pytest.raises(WeightSyncError, match="12 parameters did not arrive"):
        update.check_complete()


def test_the_hash_of_servers_on_gpus(monkeypatch):
    """Golden values of SGLang 0.5.23's Triton kernel, run by Triton's interpreter: less than a tile, bytes that fill no
    word, and several tiles."""
    assert gpu_hash(torch.arange(5, dtype=torch.float32)) == "39495f3157dc4183"
    assert gpu_hash((torch.arange(20001) % 251).to(torch.bfloat16)) == "64d980f75817742d"
    for _ in range(2):
        assert gpu_hash(torch.arange(-9000, 9000, dtype=torch.float32) / 7) == "c37a68a3b67cd2c7"
        monkeypatch.setattr("envgym.engines.sglang.checksums._CHUNK_TILES", 1)  # the size of its chunks is no matter
