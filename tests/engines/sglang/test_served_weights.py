"""A model folder that is played through servers: they must hold its weights."""

import json
import shutil

import pytest
from safetensors.torch import load_file, save_file

from envgym.engines.sglang.client import SGLangClient
from envgym.engines.sglang.weights import check_served_weights
from envgym.errors import ModelError
from envgym.training.trained import agent_from_model


@pytest.fixture
def other(tiny_model_folder, tmp_path):
    """The served model with other weights in one layer."""
    folder = shutil.copytree(tiny_model_folder, tmp_path / "other")
    weights = load_file(folder / "model.safetensors")
    weights["model.layers.1.self_attn.v_proj.weight"][3, 5] += 1e-3
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_the_folder_that_is_served_may_be_played(sglang_server, tiny_model_folder, caplog):
    agent_from_model(tiny_model_folder, servers=sglang_server.url)
    assert caplog.text == ""


def test_a_folder_with_other_weights_is_not_scored_for_those_of_the_server(sglang_server, other):
    with pytest.raises(
        ModelError,
        match=rf"{sglang_server.url} does not hold the weights in '{other}': 1 of the server's .*qkv_proj"
        r".*; serve that folder, or play .* .check_weights=False, --agent-arg check_weights=false",
    ):
        agent_from_model(other, servers=sglang_server.url)
    agent_from_model(other, servers=sglang_server.url, check_weights=False)


def test_a_tied_head_that_is_written_down_is_not_asked_of_the_server(sglang_server, tiny_model_folder, tmp_path):
    folder = shutil.copytree(tiny_model_folder, tmp_path / "both")
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    check_served_weights([SGLangClient(sglang_server.url)], folder)


def test_several_files_are_one_set_of_weights(sglang_server, tiny_model_folder, other):
    weights = load_file(tiny_model_folder / "model.safetensors")
    (other / "model.safetensors").unlink()
    names = sorted(weights)
    halves = {"model-1.safetensors": names[::2], "model-2.safetensors": names[1::2]}
    for file, part in halves.items():
        save_file({name: weights[name] for name in part}, other / file, metadata={"format": "pt"})
    index = {"weight_map": {name: file for file, part in halves.items() for name in part}}
    (other / "model.safetensors.index.json").write_text(json.dumps(index))
    check_served_weights([SGLangClient(sglang_server.url)], other)


def test_parameters_that_cannot_be_told_from_here_are_not_compared(sglang_server, other, caplog):
    weights = load_file(other / "model.safetensors")
    weights["model.layers.0.rotary.inv_freq"] = weights["model.norm.weight"].clone()
    save_file(weights, other / "model.safetensors", metadata={"format": "pt"})
    check_served_weights([SGLangClient(sglang_server.url)], other)
    assert "were not compared with those" in caplog.text and "inv_freq" in caplog.text
