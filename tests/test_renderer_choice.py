"""Which chat format a name stands for, what is remembered of its texts, and what is said when none fits."""

from __future__ import annotations

import pytest

from envgym.engines.embedded.tiny_model import byte_tokenizer, create_model
from envgym.errors import MissingDependencyError, ModelError
from envgym.model_folder import load_tokenizer
from envgym.rendering import ChatMLRenderer, PackageRenderer, Remembered, make_renderer

QWEN_TOKENS = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"]
QWEN_TEMPLATE = r"""
{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\n\n' }}{%- endif %}
    {{- "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with function
 signatures within <tools></tools> XML tags:\n<tools>" }}
    {%- for tool in tools %}{{- "\n" }}{{- tool | tojson }}{%- endfor %}
    {{- "\n</tools>\n\nFor each function call, return a json object with function name and arguments within
 <tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n
</tool_call><|im_end|>\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' or message.role == 'assistant' %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}
""".replace("function\n signatures", "function signatures").replace("within\n <tool", "within <tool")
QWEN_TEMPLATE = QWEN_TEMPLATE.replace("\\n\n</tool_call>", "\\n</tool_call>").strip()
"""What Qwen3's own template does with messages that call no tools and hold no thoughts."""


def qwen_tokenizer(template=QWEN_TEMPLATE):
    from tokenizers import AddedToken

    tokenizer = byte_tokenizer()
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in QWEN_TOKENS])
    tokenizer.chat_template = template
    return tokenizer


# -- auto ------------------------------------------------------------------------------------------------------------


def test_auto_takes_chatml_for_a_folder_whose_template_is_chatml(tmp_path):
    folder = create_model(tmp_path / "model", hidden_size=32, num_layers=1, num_heads=2, num_kv_heads=1)
    assert isinstance(make_renderer(load_tokenizer(folder), "auto"), ChatMLRenderer)


SMOLLM2_TEMPLATE = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}"
    "{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def test_auto_takes_chatml_too_where_the_template_has_a_system_message_of_its_own():
    assert isinstance(make_renderer(qwen_tokenizer(SMOLLM2_TEMPLATE), "auto"), ChatMLRenderer)


def test_auto_finds_the_format_of_a_folder_by_its_chat_template(tmp_path):
    pytest.importorskip("renderers")
    from transformers import AutoTokenizer

    qwen_tokenizer().save_pretrained(str(tmp_path / "my-finetune"))
    tokenizer = AutoTokenizer.from_pretrained(str(tmp_path / "my-finetune"))
    renderer = make_renderer(tokenizer, "auto")
    assert isinstance(renderer, PackageRenderer)
    named = make_renderer(tokenizer, "qwen3")
    tools = [{"type": "function", "function": {"name": "get", "description": "d", "parameters": {}}}]
    for prompt in (("Go.", (), "1", "user"), ("", tools, "1", "user")):
        assert renderer.start(*prompt) == named.start(*prompt)
    assert type(renderer._renderer) is type(named._renderer)


def test_auto_does_not_guess_from_a_template_that_differs():
    pytest.importorskip("renderers")
    changed = QWEN_TEMPLATE.replace("# Tools", "# Instruments")
    assert changed != QWEN_TEMPLATE
    with pytest.raises(ModelError, match=r"no append-only format 'auto'.* for example 'qwen3'"):
        make_renderer(qwen_tokenizer(changed), "auto")


def test_auto_without_a_template_says_what_to_pass():
    pytest.importorskip("renderers")
    with pytest.raises(ModelError, match=r"name the format the model was trained with, for example 'qwen3'") as caught:
        make_renderer(qwen_tokenizer(None), "auto")
    assert "\n" not in str(caught.value) and "Did you mean" not in str(caught.value)


def test_a_template_that_raises_is_not_taken_for_chatml():
    pytest.importorskip("renderers")
    with pytest.raises(ModelError, match="no append-only format 'auto'"):
        make_renderer(qwen_tokenizer("{{ raise_exception('no') }}"), "auto")


@pytest.mark.parametrize(("name", "meant"), [("qwen-3", "qwen3"), ("ChatML", "chatml"), ("glm5", "glm-5")])
def test_a_misspelt_format_is_answered_with_the_nearest(name, meant):
    pytest.importorskip("renderers")
    with pytest.raises(ModelError, match=rf"Did you mean '{meant}'\?$"):
        make_renderer(byte_tokenizer(), name)


def test_a_misspelt_chatml_is_recognised_without_the_package_too(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "renderers.base", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'envgym\[renderers\]'. Did you mean 'chatml'\?"):
        make_renderer(byte_tokenizer(), "chat-ml")


# -- what is remembered ----------------------------------------------------------------------------------------------


def counted(function):
    calls = []

    def call(key):
        calls.append(key)
        return function(key)

    return call, calls


def test_long_texts_do_not_pile_up():
    tokens, calls = counted(lambda text: tuple(range(len(text))))
    remembered = Remembered(tokens, max_bytes=1_000_000)
    for number in range(200):
        text = str(number) * 2_000
        assert remembered(text) == tuple(range(len(text)))
        assert remembered.num_bytes <= 1_000_000
    assert len(calls) == 200
    assert remembered("199" * 2_000) and len(calls) == 200  # the last is still there
    assert remembered("0" * 2_000) and len(calls) == 201  # the first is not


def test_a_text_too_long_to_keep_pushes_nothing_out():
    tokens, calls = counted(lambda text: (len(text),))
    remembered = Remembered(tokens, max_bytes=100_000)
    remembered("short")
    assert remembered("x" * 1_000_000) == (1_000_000,)
    assert remembered.num_bytes < 1_000
    assert remembered("short") == (5,) and len(calls) == 2


def test_what_was_used_last_is_forgotten_last():
    tokens, calls = counted(lambda text: (len(text),))
    remembered = Remembered(tokens, max_bytes=1_600)
    for text in ("a", "b", "c", "d", "a", "e", "f"):
        remembered(text)
    assert remembered.num_bytes <= 1_600 and calls == ["a", "b", "c", "d", "e", "f"]
    remembered("a")
    assert len(calls) == 6
    remembered("b")
    assert len(calls) == 7


def test_a_renderer_holds_megabytes_not_gigabytes():
    renderer = ChatMLRenderer(byte_tokenizer())
    for number in range(40):
        observation = f"{number} " * 20_000
        ids = renderer.start("", (), observation, "user")
        assert renderer.action_text([*ids[3:-5], renderer.stop_token_ids[0]])
    assert renderer._encode.num_bytes <= 2**24 and renderer._decode.num_bytes <= 2**24
