"""From messages to token ids, append-only: what has been sampled is never tokenised again.

The next prompt of an episode is the previous prompt ids, the sampled ids, and the ids of the new message. A renderer
produces only that last part, so text is tokenised exactly once, when it enters the episode.
"""

from __future__ import annotations

import json
import re
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from envgym.errors import MissingDependencyError, ModelError

if TYPE_CHECKING:
    from envgym.env import TextEnv

_TOOLS_HEADER = (
    "You may call tools. Their signatures, one JSON object a line:\n<tools>\n{tools}\n</tools>\n"
    'Write each call as <tool_call>{{"name": ..., "arguments": {{...}}}}</tool_call>.'
)
_CACHE_BYTES = 16 * 2**20
"""Most memory for the texts a ChatML renderer remembers, and again for the tokens."""

K = TypeVar("K", str, tuple[int, ...])
V = TypeVar("V")


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
        self._encode = Remembered(self._encode_uncached, max_bytes=_CACHE_BYTES)
        self._decode = Remembered(self._decode_uncached, max_bytes=_CACHE_BYTES)

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        return (self._end,)

    def _encode_uncached(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True))

    def _decode_uncached(self, ids: tuple[int, ...]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def _message(self, role: str, content: str) -> list[int]:
        # In one piece, as templates have it: a blank line that begins the content may share a token with the newline.
        return [self._start, *self._encode(f"{role}\n{content}"), self._end, *self._encode("\n")]

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


class Remembered(Generic[K, V]):
    """A function of texts or token ids that remembers its results, the least recently used forgotten first.

    Bounded by memory, not by entries: a file that a tool prints may be as long as ten thousand short observations.

    Args:
        function: Takes and returns a text or a tuple of token ids.
        max_bytes: Most memory of arguments and results together. What alone takes more than a quarter of it is computed
            anew each time.
    """

    def __init__(self, function: Callable[[K], V], *, max_bytes: int) -> None:
        self._function: Callable[[K], V] = function
        self._max_bytes = max_bytes
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._lock = threading.Lock()
        self.num_bytes = 0
        """What is remembered takes so much."""

    def __call__(self, key: K) -> V:
        with self._lock:
            if key in self._entries:
                self._entries.move_to_end(key)
                return self._entries[key][0]
        value = self._function(key)
        size = _num_bytes(key) + _num_bytes(value)
        if size <= self._max_bytes // 4:
            with self._lock:
                if key not in self._entries:
                    self._entries[key] = (value, size)
                    self.num_bytes += size
                while self.num_bytes > self._max_bytes:
                    _, (_, dropped) = self._entries.popitem(last=False)
                    self.num_bytes -= dropped
        return value


def _num_bytes(value: Any) -> int:
    """Memory of a text or a tuple of token ids, its place in a dictionary included."""
    return sys.getsizeof(value) + 100 + (32 * len(value) if isinstance(value, tuple) else 0)


class PackageRenderer:
    """A chat format of the `renderers` package (Qwen3, GLM, Llama 3, ...), extended turn by turn.

    What has been sampled stays in the prompt, thoughts included, where a model's own template would drop those of
    earlier turns. A control token of the model that appears in an observation is broken up by a space.

    Args:
        tokenizer: The model's Hugging Face tokenizer.
        name: Renderer name of that package, or "auto": chosen by the name the model has on the Hugging Face hub, or for
            a folder by its chat template, where one format writes the same tokens as the template does.

    Raises:
        MissingDependencyError: The `renderers` package is not installed.
        ModelError: The package knows no append-only format for this model.
    """

    def __init__(self, tokenizer: Any, name: str = "auto") -> None:
        try:
            from renderers.base import MODEL_RENDERER_MAP
        except ImportError as error:
            typo = _did_you_mean(name, ["chatml"])
            raise MissingDependencyError(
                f"the chat format {name!r} needs the renderers package: pip install 'envgym[renderers]'{typo}"
            ) from error
        model = getattr(tokenizer, "name_or_path", "") or "this model"
        try:
            chosen = name
            if name == "auto" and model not in MODEL_RENDERER_MAP:
                chosen = _format_of_template(tokenizer) or name
            self._renderer = _package_renderer(tokenizer, chosen)
        except (AssertionError, NotImplementedError, ValueError) as error:
            raise ModelError(
                f"the renderers package has no append-only format {name!r} for {model!r} ({_first_sentence(error)}); "
                "name the format the model was trained with, for example 'qwen3', or 'chatml' if it speaks plain ChatML"
                + _did_you_mean(name, ["chatml", *_package_formats()])
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


def _package_formats() -> list[str]:
    from renderers.base import RENDERER_REGISTRY, _populate_registry

    _populate_registry()
    return sorted(set(RENDERER_REGISTRY) - {"default"})


def _package_renderer(tokenizer: Any, name: str) -> Any:
    """A renderer of the package that keeps its thoughts; AssertionError, NotImplementedError or ValueError if not."""
    import renderers
    from renderers.configs import AutoRendererConfig, DefaultRendererConfig, config_from_name

    kind = AutoRendererConfig if name == "auto" else type(config_from_name(name))
    if kind is DefaultRendererConfig:
        raise NotImplementedError("it renders whole conversations only")
    return renderers.create_renderer(tokenizer, kind(thinking_retention="all"))


_PROBE_TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Looks.",
        "parameters": {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]},
    },
}
_ASKED = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "One?"}]
_PROBES: tuple[tuple[list[dict[str, str]], tuple[Mapping[str, Any], ...]], ...] = (
    (_ASKED, ()),
    ([*_ASKED, {"role": "assistant", "content": "Two."}, {"role": "user", "content": "Three?"}], ()),
    (_ASKED, (_PROBE_TOOL,)),
)
"""Conversations, with and without tools, that tell chat formats apart. All have a system message: where there is none,
some templates put in one of their own."""


def _format_of_template(tokenizer: Any) -> str | None:
    """The one format of the package that renders the probes as the tokenizer's own chat template does."""
    if not getattr(tokenizer, "chat_template", None):
        return None
    try:
        wanted = [_by_template(tokenizer, messages, tools=list(tools) or None) for messages, tools in _PROBES]
    except Exception:  # a template is a program of its author
        return None
    fitting = [name for name in _package_formats() if _renders(tokenizer, name, wanted)]
    if len(fitting) > 1:
        folder = Path(str(getattr(tokenizer, "name_or_path", ""))).name.lower()
        named = [name for name in fitting if folder.startswith(f"{name}-") or folder == name]
        if len(named) != 1:
            raise ValueError(f"its chat template fits {' and '.join(fitting)}")
        fitting = named
    return fitting[0] if fitting else None


def _by_template(tokenizer: Any, messages: list[dict[str, str]], **kwargs: Any) -> list[int]:
    return list(tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False, **kwargs))


def _renders(tokenizer: Any, name: str, wanted: Sequence[list[int]]) -> bool:
    try:
        renderer = _package_renderer(tokenizer, name)
        for (messages, tools), ids in zip(_PROBES, wanted, strict=True):
            # Templates get tools in the OpenAI envelope; the package leaves it to its caller whether to keep it.
            forms: tuple[Any, ...] = (_functions(tools), list(tools)) if tools else (None,)
            if all(list(renderer.render_ids(messages, tools=f, add_generation_prompt=True)) != ids for f in forms):
                return False
        return True
    except Exception:  # most formats need control tokens that this tokenizer does not have
        return False


def _did_you_mean(name: str, names: Sequence[str]) -> str:
    nearest = [] if name in names else get_close_matches(name, names, n=1, cutoff=0.5)
    return f". Did you mean {nearest[0]!r}?" if nearest else ""


def _functions(tools: Sequence[Mapping[str, Any]]) -> list[Any] | None:
    """Tool schemas without the OpenAI envelope, as the renderers package takes them."""
    return [tool.get("function", tool) for tool in tools] or None


def make_renderer(tokenizer: Any, name: str = "chatml") -> Renderer:
    """The renderer of that name: "chatml", a format of the `renderers` package ("qwen3", ...), or "auto".

    Auto takes ChatML where the tokenizer's chat template is plain ChatML, and else what the package finds.

    Raises:
        ModelError: The tokenizer does not fit the format.
        MissingDependencyError: The `renderers` package is not installed.
    """
    if name == "chatml" or (name == "auto" and _speaks_chatml(tokenizer)):
        return ChatMLRenderer(tokenizer)
    return PackageRenderer(tokenizer, name)


def _speaks_chatml(tokenizer: Any) -> bool:
    """Whether a tokenizer's own chat template writes the probes without tools as `ChatMLRenderer` does.

    A template that has a place for tools of its own is another format. One that adds a system prompt of its own where a
    conversation has none is not: the episodes of an environment have the environment's, or none.
    """
    if not getattr(tokenizer, "chat_template", None) or "tools" in str(tokenizer.chat_template):
        return False
    try:
        renderer = ChatMLRenderer(tokenizer)
        for messages, _ in _PROBES[:2]:
            ids = [token for m in messages for token in renderer._message(m["role"], m["content"])] + renderer._header()
            if _by_template(tokenizer, messages) != ids:
                return False
    except Exception:  # no ChatML tokens, or a template that refuses the conversation
        return False
    return True


def tools_prompt(tools: Sequence[Mapping[str, Any]]) -> str:
    """The part of a system prompt that shows tools and how to call them, for chats without a place for tools."""
    return _TOOLS_HEADER.format(tools="\n".join(json.dumps(tool) for tool in tools))


def tools_for(env: TextEnv) -> tuple[Mapping[str, Any], ...]:
    """Tool schemas the chat format must show; none where the environment's own prompt explains its compact calls."""
    base: Any = env.unwrapped
    return base.tools if getattr(base, "call_format", "hermes") == "hermes" else ()
