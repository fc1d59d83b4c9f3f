"""Creates a small random model with a byte-level tokenizer, to train from nothing on a CPU."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from envgym.errors import ModelError
from envgym.model_folder import quiet

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

ENDOFTEXT, IM_START, IM_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
ROLE_WORDS = ("system", "user", "assistant", "tool")

_CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)


def create_model(
    folder: str | Path,
    *,
    hidden_size: int = 64,
    num_layers: int = 2,
    num_heads: int = 4,
    num_kv_heads: int = 2,
    intermediate_size: int | None = None,
    head_dim: int | None = None,
    context_length: int = 1024,
    words: Sequence[str] = (),
    rope_theta: float = 10_000.0,
    initializer_range: float | None = None,
    seed: int = 0,
) -> Path:
    """Writes a random Qwen3 model (float32 safetensors, tied embeddings) and a byte-level ChatML tokenizer.

    The defaults give 0.12 million parameters. transformers' Auto classes and SGLang load the folder like any other. The
    same arguments give the same weights; the global random state is left as it was.

    Args:
        folder: Where to write; created with its parents, files of the same names are replaced.
        hidden_size: Width of the residual stream.
        num_layers: Number of decoder layers.
        num_heads: Number of query heads.
        num_kv_heads: Number of key and value heads; divides `num_heads`.
        intermediate_size: Width of the gated MLP; `3 * hidden_size` when None.
        head_dim: Size of one head, even; `hidden_size / num_heads` when None.
        context_length: Most tokens of a sequence (`max_position_embeddings`).
        words: Words that become one token each, for example the names of an environment's tools: shorter turns, and
            less for a small model to learn.
        rope_theta: Base of the rotary position frequencies.
        initializer_range: Standard deviation of the initial weights; sqrt(2 / (5 * hidden_size)) when None (Nguyen and
            Salazar, 1910.05895). The 0.02 that large models use is far too small at these widths: copying a word
            from the observation takes twice as many updates to learn.
        seed: Seed of the initial weights.

    Returns:
        The folder.

    Raises:
        ModelError: The sizes do not fit together.
    """
    if head_dim is None and hidden_size % num_heads:
        raise ModelError(
            f"hidden_size {hidden_size} is not a multiple of num_heads {num_heads}; change one or set head_dim."
        )
    if num_heads % num_kv_heads:
        raise ModelError(f"num_heads {num_heads} is not a multiple of num_kv_heads {num_kv_heads}; change one of them.")
    head_dim = hidden_size // num_heads if head_dim is None else head_dim
    if head_dim % 2:
        raise ModelError(f"The head size {head_dim} is odd, but rotary positions rotate pairs; make it even.")
    from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

    tokenizer = byte_tokenizer(context_length=context_length, words=words)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden_size,
        intermediate_size=3 * hidden_size if intermediate_size is None else intermediate_size,
        num_hidden_layers=num_layers,
        num_attention_heads=num_heads,
        num_key_value_heads=num_kv_heads,
        head_dim=head_dim,
        max_position_embeddings=context_length,
        initializer_range=math.sqrt(0.4 / hidden_size) if initializer_range is None else initializer_range,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": rope_theta},
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    with quiet():
        model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    # transformers 5 writes a class name that transformers 4 (and servers built on it) do not know; both know this one.
    settings = json.loads((path / "tokenizer_config.json").read_text(encoding="utf-8"))
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    (path / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    return path


def byte_tokenizer(*, context_length: int = 1024, words: Sequence[str] = ()) -> PreTrainedTokenizerFast:
    """A tokenizer with one token per UTF-8 byte (id = byte value), three ChatML tokens, the role words and given words.

    Every text encodes, and decodes to itself. `<|endoftext|>` (256) pads, `<|im_end|>` (258) ends a turn, and a ChatML
    header such as `<|im_start|>user\\n` costs three tokens. A role word that stands alone in a text is one token too.

    Raises:
        ModelError: A word is empty or holds white space.
    """
    for word in words:
        if not word or any(character.isspace() for character in word):
            raise ModelError(f"a word of the tokenizer must be a string without white space, got {word!r}")
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    vocab = {symbol: byte for byte, symbol in bytes_to_unicode().items()}  # the printable characters of byte-level BPE
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([ENDOFTEXT, IM_START, IM_END])
    backend.add_tokens(
        [AddedToken(word, single_word=True, normalized=False) for word in dict.fromkeys((*ROLE_WORDS, *words))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=ENDOFTEXT,
        eos_token=IM_END,
        chat_template=_CHAT_TEMPLATE,
        model_max_length=context_length,
        clean_up_tokenization_spaces=False,
    )
