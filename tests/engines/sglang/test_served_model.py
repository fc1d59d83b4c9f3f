"""Models of servers: those that are refused for what they compute, and folders that cannot be served."""

import json
import shutil
from pathlib import Path

import pytest

from envgym.cli import main
from envgym.engines import SGLangServer
from envgym.engines.sglang.served_model import architecture_of, check_architecture, check_served_model
from envgym.errors import ModelError


@pytest.fixture
def model_folder(tmp_path: Path, tiny_model_folder: Path) -> Path:
    """A copy to change or damage."""
    return Path(shutil.copytree(tiny_model_folder, tmp_path / "model"))


def change(folder, **entries):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))


def test_a_copy_computes_the_same(tiny_model_folder, model_folder):
    unrelated = {"torch_dtype": "bfloat16", "_name_or_path": "elsewhere", "use_cache": False}
    change(model_folder, **unrelated, transformers_version="4.0")
    assert architecture_of(model_folder) == architecture_of(tiny_model_folder)
    check_architecture("http://s", model_folder, tiny_model_folder)


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
def test_what_another_setting_computes_is_refused(tiny_model_folder, model_folder, entries, problem):
    change(model_folder, **entries)
    with pytest.raises(ModelError, match=rf"http://s serves a model whose {problem}.*start it with the model"):
        check_architecture("http://s", model_folder, tiny_model_folder)


def test_the_old_and_the_new_way_to_write_a_setting_are_the_same(tiny_model_folder, model_folder):
    config = json.loads((model_folder / "config.json").read_text())
    theta = config.pop("rope_parameters")["rope_theta"]
    (model_folder / "config.json").write_text(json.dumps(config | {"rope_theta": theta}))
    check_architecture("http://s", model_folder, tiny_model_folder)


def test_what_cannot_be_read_is_not_compared(tiny_model_folder, model_folder, tmp_path):
    assert architecture_of(tmp_path / "nowhere") is None
    change(model_folder, model_type="a model of the future")
    assert architecture_of(model_folder) is None
    check_architecture("http://s", model_folder, tiny_model_folder)


# -- folders that cannot be served ------------------------------------------------------------------------------------


def test_a_model_folder_that_cannot_be_served_is_refused_before_anything_starts(tmp_path, model_folder):
    with pytest.raises(ModelError, match="does not exist"):
        SGLangServer(tmp_path / "nowhere", "cpu")
    assert check_served_model(model_folder)["model_type"] == "qwen3"
    change(model_folder, vocab_size=100)
    with pytest.raises(ModelError, match=r"Vocabulary mismatch.*ids up to 262 but the model's vocab_size is 100"):
        check_served_model(model_folder)
    check_served_model(model_folder, tokenizer=False)
    for file, message, tokenizer in (
        ("tokenizer.json", r"no tokenizer.*--no-tokenizer", True),
        ("model.safetensors", r"no weights \(\*\.safetensors\)", False),
        ("config.json", r"no config\.json", True),
    ):
        (model_folder / file).unlink()
        with pytest.raises(ModelError, match=message):
            check_served_model(model_folder, tokenizer=tokenizer)


def damage(file: Path, fault: str) -> None:
    """Does to a file what bad downloads do."""
    content = file.read_bytes()
    faults = {
        "cut in the data": content[:-1],
        "cut in the header": content[:40],
        "cut in the length": content[:5],
        "something after it": content + b"0",
        "header without JSON": content[:8] + b"x" * (len(content) - 8),
        "header without offsets": (2).to_bytes(8, "little") + b"[]",
        "empty": b"",
        "a web page": b"<!DOCTYPE html><html>not found</html>",
        "pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n",
    }
    file.write_bytes(faults[fault])


CUT_OFF, AGAIN = r"is cut off or no safetensors file", r"\(.*\); download or copy model\.safetensors again"


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        *((f"cut in the {part}", f"{CUT_OFF} {AGAIN}") for part in ("data", "header", "length")),
        ("something after it", f"{CUT_OFF} {AGAIN}"),
        *((fault, CUT_OFF) for fault in ("header without JSON", "header without offsets", "a web page")),
        ("empty", "is empty; download or copy"),
        ("pointer", "is a git-lfs pointer and not the file itself; run `git lfs pull`"),
    ],
)
def test_damaged_weights_are_named_before_anything_starts(model_folder: Path, fault: str, message: str) -> None:
    damage(model_folder / "model.safetensors", fault)
    with pytest.raises(ModelError, match=f"'{model_folder}/model.safetensors' {message}"):
        check_served_model(model_folder)


def test_the_command_names_them_in_one_line(model_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damage(model_folder / "model.safetensors", "cut in the data")
    assert main(["serve", str(model_folder), "--device", "cpu", "--port", "0"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"envgym: '{model_folder}/model.safetensors' is cut off")


def test_every_part_of_the_weights_must_be_there(model_folder: Path) -> None:
    whole, index = model_folder / "model.safetensors", model_folder / "model.safetensors.index.json"
    parts = [model_folder / f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    for part in parts:
        shutil.copyfile(whole, part)
    whole.unlink()
    index.write_text(json.dumps({"weight_map": {"a": parts[0].name, "b": parts[1].name}}))
    check_served_model(model_folder)
    damage(parts[1], "cut in the data")
    with pytest.raises(ModelError, match=r"model-00002-of-00002\.safetensors' is cut off"):
        check_served_model(model_folder)
    parts[1].unlink()
    missing = r"model-00002-of-00002.safetensors' cannot be read \(No such file or directory\); download"
    with pytest.raises(ModelError, match=missing):
        check_served_model(model_folder)
    index.unlink()
    with pytest.raises(ModelError, match=missing):  # the other part's name says so
        check_served_model(model_folder)
    for content, message in (("{", "is not valid JSON"), ("{}", "has no weight_map"), ("", "is empty")):
        index.write_text(content)
        with pytest.raises(ModelError, match=f"index.json' {message}.*again"):
            check_served_model(model_folder)


def test_a_link_to_weights_that_are_gone_is_named(model_folder: Path) -> None:
    (model_folder / "model.safetensors").rename(model_folder / "blob")
    (model_folder / "model.safetensors").symlink_to("blob")
    check_served_model(model_folder)
    (model_folder / "blob").unlink()
    with pytest.raises(ModelError, match=r"model.safetensors' cannot be read"):
        check_served_model(model_folder)


@pytest.mark.parametrize(
    ("fault", "message"),
    [("cut in the data", "is not valid JSON"), ("empty", "is empty"), ("pointer", "is a git-lfs pointer")],
)
def test_a_damaged_tokenizer_is_named_too(model_folder: Path, fault: str, message: str) -> None:
    damage(model_folder / "tokenizer.json", fault)
    check_served_model(model_folder, tokenizer=False)
    with pytest.raises(ModelError, match=f"tokenizer.json' {message}"):
        check_served_model(model_folder)
