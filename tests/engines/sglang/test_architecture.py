"""Models whose weights fit each other and that yet compute something else."""

import json
import shutil

import pytest

from envgym.engines.embedded.tiny_model import create_model
from envgym.engines.sglang.architecture import architecture_of, check_architecture
from envgym.errors import ModelError


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return create_model(tmp_path_factory.mktemp("model") / "one")


@pytest.fixture
def other(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "other")


def change(folder, **entries):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))


def differ(folder, other):
    check_architecture("http://s", architecture_of(other), architecture_of(folder))


def test_a_copy_computes_the_same(folder, other):
    change(other, torch_dtype="bfloat16", _name_or_path="elsewhere", use_cache=False, transformers_version="4.0")
    assert architecture_of(other) == architecture_of(folder)
    differ(folder, other)


@pytest.mark.parametrize(
    ("entries", "problem"),
    [
        ({"rms_norm_eps": 1e-3}, "rms_norm_eps is 0.001, expected 1e-06"),
        ({"num_attention_heads": 2, "num_key_value_heads": 2}, "num_attention_heads is 2, expected"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 50.0}}, "rope_parameters is .*50"),
        ({"num_hidden_layers": 3, "layer_types": 3 * ["full_attention"]}, "num_hidden_layers is 3, expected 2"),
        ({"hidden_act": "gelu"}, "hidden_act is gelu, expected silu"),
    ],
)
def test_what_another_setting_computes_is_refused(folder, other, entries, problem):
    change(other, **entries)
    with pytest.raises(ModelError, match=rf"http://s serves a model whose {problem}.*start it with the model"):
        differ(folder, other)


def test_the_old_and_the_new_way_to_write_a_setting_are_the_same(folder, other):
    config = json.loads((other / "config.json").read_text())
    theta = config.pop("rope_parameters")["rope_theta"]
    (other / "config.json").write_text(json.dumps(config | {"rope_theta": theta}))
    differ(folder, other)


def test_what_cannot_be_read_is_not_compared(folder, other, tmp_path):
    assert architecture_of(tmp_path / "nowhere") is None
    change(other, model_type="a model of the future")
    assert architecture_of(other) is None
    differ(folder, other)
