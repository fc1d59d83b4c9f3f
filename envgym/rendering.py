"""From messages to token ids, append-only: what has been sampled is never tokenised again.

The next prompt of an episode is the previous prompt ids, the sampled ids, and the ids of the new message. A renderer
produces only that last part, so text is tokenised exactly once, when it enters the episode.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

from envgym.errors import MissingDependencyError, ModelError

if TYPE_CHECKING:
    from envgym.env import TextEnv

_TOOLS_HEADER = (
    "You may call tools. Their signatures, one JSON object a line:\n<tools>\n{tools}\n</tools>\n"
    'Write each call as <tool_call>{{"name": ..., "arguments": {{...}}}}</tool_call>.'
)


class Renderer(Protocol):
    """Turns the messages of one episode into tokens and sampled tokens into text."""

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """A turn of the policy ends with one of these."""

    def start(self, system_prompt: str, tools: Sequence[Mapping[str, Any]], observation: str, role: str) -> list[int]:
        """Tokens of the first prompt: instructions, tools, first observation, and the header of the policy's turn."""

    def extend(self, prompt_ids: list[int], action_ids: Sequence[int], observation: str, role: str) -> list[int]:
        """Tokens that follow a finished turn: its closing template text, the observation, the next turn's header.

        Args:
            prompt_ids: The prompt of the finished turn.
            action_ids: What was sampled for it, the end-of-turn token included.
            observation: The new message.
            role: "user" or "tool".
        """

    def action_ids(self, text: str) -> list[int]:
        """Tokens of a message that was written as text (a demonstration), the end-of-turn token included."""

    def action_text(self, action_ids: Sequence[int]) -> str:
        """Text of a sampled message without its end-of-turn token."""


class ChatMLRenderer:
    """Plain ChatML, as SmolLM2 and this library's small models use it.

    A message is `<|im_start|>role`, newline, content, `<|im_end|>`, newline. Text from outside never becomes a control
    token: `<|im_end|>` inside an observation is tokenised as its characters.

    Args:
        tokenizer: A fast Hugging Face tokenizer with the tokens `<|im_start|>` and `<|im_end|>`.

    Raises:
        ModelError: The tokenizer lacks one of the two tokens.
    """

    def __init__(self, tokenizer: Any) -> None:
        vocabulary = tokenizer.get_vocab()
        for token in ("<|im_start|>", "<|im_end|>"):
            if token not in vocabulary:
                raise ModelError(
                    f"the tokenizer has no token {token!r}, so its chats are not ChatML; name another renderer"
                )
        self._start: int = vocabulary["<|im_start|>"]
        self._end: int = vocabulary["<|im_end|>"]
        self._tokenizer = tokenizer
        self._encode = lru_cache(maxsize=65536)(self._encode_uncached)
        self._decode = lru_cache(maxsize=65536)(self._decode_uncached)

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        return (self._end,)

    def _encode_uncached(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True))

    def _decode_uncached(self, ids: tuple[int, ...]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def _message(self, role: str, content: str) -> list[int]:
        return [self._start, *self._encode(f"{role}\n"), *self._encode(content), self._end, *self._encode("\n")]

    def _header(self) -> list[int]:
        return [self._start, *self._encode("assistant\n")]

    def start(self, system_prompt: str, tools: Sequence[Mapping[str, Any]], observation: str, role: str) -> list[int]:
        parts = [system_prompt] if system_prompt else []
        if tools:
            parts.append(tools_prompt(tools))
        ids = self._message("system", "\n\n".join(parts)) if parts else []
        return ids + self._message(role, observation) + self._header()

    def extend(self, prompt_ids: list[int], action_ids: Sequence[int], observation: str, role: str) -> list[int]:
        close = [] if action_ids and action_ids[-1] == self._end else [self._end]
        return [*close, *self._encode("\n"), *self._message(role, observation), *self._header()]

    def action_ids(self, text: str) -> list[int]:
        return [*self._encode(text), self._end]

    def action_text(self, action_ids: Sequence[int]) -> str:
        ids = tuple(action_ids)
        return self._decode(ids[:-1] if ids and ids[-1] == self._end else ids)


class PackageRenderer:
    """A chat format of the `renderers` package (Qwen3, GLM, Llama 3, ...), extended turn by turn.

    What has been sampled stays in the prompt, thoughts included, where a model's own template would drop those of
    earlier turns. A control token of the model that appears in an observation is broken up by a space.

    Args:
        tokenizer: The model's Hugging Face tokenizer.
        name: Renderer name of that package, or "auto" to choose by the tokenizer's model name.

    Raises:
        MissingDependencyError: The `renderers` package is not installed.
        ModelError: The package knows no append-only format for this model.
    """

    def __init__(self, tokenizer: Any, name: str = "auto") -> None:
        try:
            import renderers
            from renderers.configs import AutoRendererConfig, DefaultRendererConfig, config_from_name
        except ImportError as error:
            raise MissingDependencyError(
                f"the chat format {name!r} needs the renderers package: pip install 'envgym[renderers]'"
            ) from error
        model = getattr(tokenizer, "name_or_path", "") or "this model"
        try:
            kind = AutoRendererConfig if name == "auto" else type(config_from_name(name))
            if kind is DefaultRendererConfig:
                raise NotImplementedError("it renders whole conversations only")
            self._renderer = renderers.create_renderer(tokenizer, kind(thinking_retention="all"))
        except (AssertionError, NotImplementedError, ValueError) as error:
            raise ModelError(
                f"the renderers package has no append-only format {name!r} for {model!r} ({_first_sentence(error)}); "
                "name the format the model was trained with, for example 'qwen3', or 'chatml' if it speaks plain ChatML"
            ) from error
        self._tokenizer = tokenizer
        special = sorted((str(t) for t in tokenizer.added_tokens_decoder.values() if t.special), key=len, reverse=True)
        self._control = re.compile("|".join(map(re.escape, special)) or r"(?!)")

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        return tuple(self._renderer.get_stop_token_ids())

    def start(self, system_prompt: str, tools: Sequence[Mapping[str, Any]], observation: str, role: str) -> list[int]:
        messages: list[Any] = [{"role": "system", "content": system_prompt}] if system_prompt else []
        messages.append({"role": role, "content": self._plain(observation)})
        return list(self._renderer.render_ids(messages, tools=_functions(tools), add_generation_prompt=True))

    def extend(self, prompt_ids: list[int], action_ids: Sequence[int], observation: str, role: str) -> list[int]:
        message: Any = {"role": role, "content": self._plain(observation)}
        sampled = list(action_ids)
        # A turn that ended inside its thoughts cannot be bridged, but what follows it is the same as had they ended.
        thoughts_ended = [*sampled[:-1], *self._tokenizer.encode("</think>", add_special_tokens=False), *sampled[-1:]]
        for completion in (sampled, thoughts_ended):
            stream = prompt_ids + completion
            bridged = self._renderer.bridge_to_next_turn(prompt_ids, completion, [message])
            if bridged is not None and list(bridged.token_ids[: len(stream)]) == stream:
                return list(bridged.token_ids[len(stream) :])
        raise ModelError("this chat format rewrites its history, so an episode cannot be extended token by token")

    def action_ids(self, text: str) -> list[int]:
        return [*self._tokenizer.encode(text, add_special_tokens=False), self.stop_token_ids[0]]

    def action_text(self, action_ids: Sequence[int]) -> str:
        ids = list(action_ids)
        if ids and ids[-1] in self.stop_token_ids:
            ids.pop()
        return self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def _plain(self, text: str) -> str:
        return self._control.sub(lambda token: f"{token[0][0]} {token[0][1:]}", text)


def _first_sentence(error: BaseException) -> str:
    return (str(error) or type(error).__name__).partition("\n")[0].partition(". ")[0].rstrip(".")


def _functions(tools: Sequence[Mapping[str, Any]]) -> list[Any] | None:
    """Tool schemas without the OpenAI envelope, as the renderers package takes them."""
    return [tool.get("function", tool) for tool in tools] or None


def make_renderer(tokenizer: Any, name: str = "chatml") -> Renderer:
    """The renderer of that name: "chatml", or a format of the `renderers` package ("auto", "qwen3", ...).

    Raises:
        ModelError: The tokenizer does not fit the format.
        MissingDependencyError: The `renderers` package is not installed.
    """
    return ChatMLRenderer(tokenizer) if name == "chatml" else PackageRenderer(tokenizer, name)


def tools_prompt(tools: Sequence[Mapping[str, Any]]) -> str:
    """The part of a system prompt that shows tools and how to call them, for chats without a place for tools."""
    return _TOOLS_HEADER.format(tools="\n".join(json.dumps(tool) for tool in tools))


def tools_for(env: TextEnv) -> tuple[Mapping[str, Any], ...]:
    """Tool schemas the chat format must show; none where the environment's own prompt explains its compact calls."""
    base: Any = env.unwrapped
    return base.tools if getattr(base, "call_format", "hermes") == "hermes" else ()
