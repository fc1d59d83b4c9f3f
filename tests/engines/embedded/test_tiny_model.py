"""A created model folder is what transformers expects, its tokenizer loses no text, and broken folders are named."""

import json
import shutil

import pytest
import torch

from envgym.engines.embedded.tiny_model import create_model
from envgym.errors import ModelError
from envgym.model_folder import load_model, load_tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return create_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def copy(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "copy")


def test_the_auto_classes_load_a_model_of_about_a_tenth_of_a_million_parameters(folder):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert 100_000 < model.num_parameters() < 130_000
    assert model.config.vocab_size == len(tokenizer) == 263
    assert model.config.tie_word_embeddings and model.dtype == torch.float32
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id == 258
    assert tokenizer.pad_token_id == 256


def test_the_same_seed_gives_the_same_weights_and_leaves_the_global_random_state_alone(tmp_path):
    state = torch.random.get_rng_state()
    first, again, other = (load_model(create_model(tmp_path / n, seed=s)) for n, s in (("a", 3), ("b", 3), ("c", 4)))
    assert torch.equal(state, torch.random.get_rng_state())
    assert all(torch.equal(x, y) for x, y in zip(first.parameters(), again.parameters(), strict=True))
    assert not torch.equal(first.model.embed_tokens.weight, other.model.embed_tokens.weight)


ALL_BYTES = "".join(map(chr, range(256))) + "日本🙂"
CHATML = "user users <|im_start|>tool\n<|im_end|>"


@pytest.mark.parametrize(
    "text", ["hello", "  two  spaces ", "a \u0301 e\u0301 .", "naïve 日本語 🙂", "", CHATML, ALL_BYTES]
)
def test_every_text_decodes_to_itself_and_plain_text_is_its_utf8_bytes(folder, text):
    tokenizer = load_tokenizer(folder)
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids) == text
    assert text == CHATML or ids == list(text.encode())


def test_a_chatml_header_costs_three_tokens_and_the_chat_template_is_made_of_them(folder):
    tokenizer = load_tokenizer(folder)
    for role, token in (("system", 259), ("user", 260), ("assistant", 261), ("tool", 262)):
        assert tokenizer.encode(f"<|im_start|>{role}\n", add_special_tokens=False) == [257, token, 10]
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert text == "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\n"


def test_the_written_tokenizer_class_is_one_that_older_transformers_know(folder):
    assert json.loads((folder / "tokenizer_config.json").read_text())["tokenizer_class"] == "PreTrainedTokenizerFast"


def test_load_model_converts_to_the_dtype_asked_for(folder):
    assert load_model(folder, torch.bfloat16).dtype == torch.bfloat16


@pytest.mark.parametrize("load", [load_model, load_tokenizer])
def test_a_missing_folder_and_one_without_config_are_named(load, tmp_path):
    with pytest.raises(ModelError, match="does not exist; create one"):
        load(tmp_path / "nowhere")
    with pytest.raises(ModelError, match=r"has no config\.json"):
        load(tmp_path)


def test_a_folder_with_missing_damaged_or_no_weights_or_no_tokenizer_is_named(copy):
    from safetensors.torch import load_file, save_file

    file = copy / "model.safetensors"
    tensors = load_file(file)
    tensors.pop("model.norm.weight")
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"lack 1 parameters.*model\.norm\.weight"):
        load_model(copy)
    file.write_bytes(b"not safetensors")
    with pytest.raises(ModelError, match="transformers cannot load the model"):
        load_model(copy)
    file.unlink()
    with pytest.raises(ModelError, match="no weights"):
        load_model(copy)
    (copy / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match="no tokenizer"):
        load_tokenizer(copy)


def test_tokenizer_ids_outside_the_models_vocabulary_are_a_vocabulary_mismatch(copy):
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"vocab_size": 262}))
    with pytest.raises(ModelError, match=r"Vocabulary mismatch.*up to 262.*vocab_size is 262"):
        load_tokenizer(copy)


def test_sizes_that_do_not_fit_are_refused(tmp_path):
    for sizes in ({"hidden_size": 65}, {"num_heads": 4, "num_kv_heads": 3}, {"head_dim": 15}):
        with pytest.raises(ModelError):
            create_model(tmp_path, **sizes)
