"""A chat model's folder as an agent: its own format, the tools of the environment, and settings that are checked."""

from __future__ import annotations

import json

import pytest
import torch
from chat_models import largest_logprob_error

import envgym
from envgym.agents.registry import make_agent
from envgym.engines.embedded.tiny_model import byte_tokenizer
from envgym.errors import ModelError
from envgym.model_folder import load_model, load_tokenizer
from envgym.rendering import ChatMLRenderer, make_renderer

TEMPLATE = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""SmolLM2's: ChatML, with a system prompt of its own where a conversation has none."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A random llama model as transformers writes one, that ends a turn after about ten tokens."""
    from transformers import LlamaConfig, LlamaForCausalLM

    path = tmp_path_factory.mktemp("llama")
    tokenizer = byte_tokenizer(context_length=4096)
    tokenizer.chat_template = TEMPLATE
    end = tokenizer.eos_token_id
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "max_position_embeddings": 4096}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = LlamaConfig(vocab_size=len(tokenizer), **sizes, **heads, eos_token_id=end, bos_token_id=None)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LlamaForCausalLM(config)
        with torch.no_grad():
            for weight in (model.model.embed_tokens.weight, model.lm_head.weight):
                weight.normal_()
            model.model.embed_tokens.weight[:, 0] = 20  # a feature that is always there, for the token that ends a turn
            model.lm_head.weight[:, 0] = 0
            model.lm_head.weight[end, 0] = 0.7
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def play(folder, env_id, episodes, **agent_kwargs):
    played = []
    reports = envgym.evaluate(
        str(folder),
        env_id,
        episodes=episodes,
        agent_kwargs=agent_kwargs,
        env_kwargs={"call_format": "hermes"},
        on_episode=played.append,
    )
    return reports[env_id], played


def test_a_chat_model_is_evaluated_on_a_tool_environment(folder):
    settings = {"temperature": 0.9, "max_turn_tokens": 200}
    report, played = play(folder, "envgym/Calculator-v0", 6, **settings)
    assert (report.episodes, report.failed, report.success) == (6, 0, 0.0)
    assert max(len(trajectory.turns) for trajectory in played) > 3  # a conversation, and not one long message
    assert {turn.action_error is not None for t in played for turn in t.turns if turn.executed} == {True}
    model = load_model(folder)
    assert max(largest_logprob_error(model, t, temperature=0.9) for t in played) < 1e-4


def test_the_prompt_is_the_template_of_the_model_with_the_tools_in_the_system_prompt(folder):
    _, [trajectory] = play(folder, "envgym/Calculator-v0", 1, max_turn_tokens=4)
    tokenizer = load_tokenizer(folder)
    prompt = tokenizer.decode(list(trajectory.turns[0].observation_ids))
    env = envgym.make("envgym/Calculator-v0", call_format="hermes")
    system = prompt.removeprefix("<|im_start|>system\n").partition("<|im_end|>")[0]
    assert system.startswith(env.unwrapped.system_prompt)
    assert all(json.dumps(tool) in system for tool in env.unwrapped.tools) and len(env.unwrapped.tools) == 6
    messages = [{"role": "system", "content": system}, {"role": "user", "content": trajectory.turns[0].observation}]
    assert prompt == tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)


def test_a_system_prompt_that_the_template_would_add_is_left_out(folder):
    """The instructions of an episode are the environment's."""
    tokenizer = load_tokenizer(folder)
    renderer = make_renderer(tokenizer, "auto")
    assert isinstance(renderer, ChatMLRenderer)
    assert tokenizer.decode(renderer.start("", (), "hi", "user")) == (
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_template_that_changes_the_conversation_is_not_taken_for_chatml():
    pytest.importorskip("renderers")
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = TEMPLATE.replace("message['content']", "message['content'] | upper")
    with pytest.raises(ModelError, match="no append-only format 'auto'"):
        make_renderer(tokenizer, "auto")


def test_settings_reach_the_sampling_and_temperature_0_is_greedy(folder):
    agent = make_agent(folder, temperature=0.5, top_k=5, top_p=0.9, max_turn_tokens=7, context_length=100)
    sampling = agent.sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.max_new_tokens) == (0.5, 5, 0.9, 7)
    assert agent.policy.context_length == 100 and agent.name == "sampled"
    for greedy in ({"temperature": 0}, {"greedy": True, "temperature": 0.5}):
        agent = make_agent(folder, **greedy)
        assert agent.sampling.temperature == 0 and agent.name == "greedy"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"max_turn_tokens": 0}, "max_turn_tokens"),
        ({"context_length": 5000}, "from 2 to the model's 4096, got 5000"),
        ({"temprature": 1}, "temprature"),
        ({"renderer": "chatmll"}, "Did you mean 'chatml'"),
    ],
)
def test_a_wrong_setting_is_named(folder, wrong, message):
    with pytest.raises((ValueError, ModelError), match=message):
        make_agent(folder, **wrong)
