"""Any OpenAI-compatible chat endpoint as an agent."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from envgym.agent import Action, Agent, Player, PromptTooLong
from envgym.chat import ChatEndpoint, PromptRefused
from envgym.env import TextEnv
from envgym.rendering import tools_for, tools_prompt
from envgym.types import Completion, FinishReason


class OpenAIChatAgent(Agent):
    """Plays through `/chat/completions` of a server: OpenAI's own, vLLM, SGLang, llama.cpp, Ollama, and many more.

    Where an environment has tools, the server is given them and its native calls become the text the environment reads
    (`<tool_call>...</tool_call>`); the calls stay in the history with their ids, and the observation that follows is
    their answer. A call whose arguments are not valid JSON reaches the environment as it is, which says what is wrong
    with it. With `native_tools=False`, or where an environment explains its calls itself, the exchange is text only.

    What goes wrong after all retries (see `ChatEndpoint`) fails the episode: it is recorded and not scored. A server
    that refuses the key or does not know the model ends the evaluation.

    A prompt the server finds too long ends the episode as a context overflow. A message cut by `max_tokens` is a cut
    turn, and not executed; where the server counts fewer written tokens than `max_tokens`, it was the context that
    ended. A message that a content filter has emptied counts as the agent's.

    Args:
        model: Name of the model at the server, or `NAME@BASE_URL`; `make_agent("openai:NAME@BASE_URL")` passes it here.
        base_url: The server's address; see `ChatEndpoint`.
        api_key: Its key.
        temperature: None leaves it to the server, as with the next two.
        top_p: See `SamplingParams`.
        max_tokens: Most tokens of a message. Servers that call it otherwise need `extra`.
        greedy: Short for temperature 0.
        native_tools: Whether the server is given the tools, rather than the prompt.
        send_seed: Send a seed with each request, for servers that can repeat a generation.
        extra: Further fields of each request, for example {"chat_template_kwargs": {"enable_thinking": False}}.
        timeout_s: Longest wait for an answer, in seconds.
        max_retries: How often a request is tried again.
        name: What evaluations call this agent; the model when None.

    Raises:
        ValueError: A number is out of its range, or there is no key for OpenAI's own server.
        MissingDependencyError: The openai package is not installed.
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        max_tokens: int | None = None,
        greedy: bool = False,
        native_tools: bool = True,
        send_seed: bool = False,
        extra: Mapping[str, Any] | None = None,
        timeout_s: float = 300.0,
        max_retries: int = 5,
        name: str | None = None,
    ) -> None:
        self.endpoint = ChatEndpoint(
            model, base_url=base_url, api_key=api_key, timeout_s=timeout_s, max_retries=max_retries
        )
        if max_tokens is not None and max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, got {max_tokens}")
        if greedy and temperature:
            raise ValueError(f"greedy is temperature 0, but the temperature is {temperature}")
        self.name = name or self.endpoint.model
        self.native_tools = native_tools
        self.send_seed = send_seed
        self.max_tokens = max_tokens
        sampling = {"temperature": 0.0 if greedy else temperature, "top_p": top_p, "max_tokens": max_tokens}
        self.sampling = {field: value for field, value in sampling.items() if value is not None}
        self.extra = dict(extra or {})

    def settings(self) -> dict[str, Any]:
        """What the results of an evaluation depend on; the key is not among it."""
        return {
            "model": self.endpoint.model,
            "base_url": self.endpoint.base_url,
            "native_tools": self.native_tools,
            "send_seed": self.send_seed,
            **self.sampling,
            "extra": self.extra,
        }

    def start(self, env: TextEnv, *, seed: int) -> ChatPlayer:
        base: Any = env.unwrapped
        return ChatPlayer(self, base.system_prompt, tools_for(env), seed)


class ChatPlayer(Player):
    """One episode of an `OpenAIChatAgent`: its conversation.

    Attributes:
        messages: The conversation so far, as it is sent.
        usage: Tokens so far, as the server counts them: `prompt_tokens` (each turn's whole prompt) and `action_tokens`.
    """

    def __init__(
        self, agent: OpenAIChatAgent, system_prompt: str, tools: Sequence[Mapping[str, Any]], seed: int
    ) -> None:
        self._agent = agent
        self._seed = seed
        self._native: list[Any] = [_enveloped(tool) for tool in tools] if agent.native_tools else []
        self._pending: list[str] = []
        self._num_turns = 0
        self.usage = {"prompt_tokens": 0, "action_tokens": 0}
        parts = [system_prompt] if system_prompt else []
        if tools and not agent.native_tools:
            parts.append(tools_prompt(tools))
        self.messages: list[dict[str, Any]] = []
        if parts:
            self.messages.append({"role": "system", "content": "\n\n".join(parts)})

    async def act(self, observation: str, info: Mapping[str, Any]) -> Action:
        self._observe(observation)
        request: dict[str, Any] = {**self._agent.sampling, "messages": self.messages}
        if self._agent.extra:
            request["extra_body"] = self._agent.extra
        if self._native:
            request["tools"] = self._native
        if self._agent.send_seed:
            request["seed"] = (self._seed + self._num_turns) % 2**31
        try:
            answer = await self._agent.endpoint.complete(request)
        except PromptRefused as error:
            raise PromptTooLong(()) from error
        self._num_turns += 1
        choice, written = answer.choices[0], self._count(answer.usage)
        text = self._answer(choice.message)
        return Action(text, (), Completion((), (), self._finish(choice.finish_reason, written)))

    def _observe(self, observation: str) -> None:
        """Adds an observation: as the answer to the calls that wait for one, else as the user's message.

        A tool message without its call, or a call without its answer, would be refused by the server.
        """
        if not self._pending:
            self.messages.append({"role": "user", "content": observation})
        for number, call_id in enumerate(self._pending):
            content = observation if number == 0 else "See the answer to the first call."
            self.messages.append({"role": "tool", "tool_call_id": call_id, "content": content})
        self._pending = []

    def _answer(self, message: Any) -> str:
        """Adds the server's message to the conversation and returns it in the environment's words."""
        content = message.content or ""
        calls = [call for call in message.tool_calls or () if getattr(call, "function", None) is not None]
        if not calls or not self._native:
            self.messages.append({"role": "assistant", "content": content})
            return content
        named = [(str(call.function.name or ""), _arguments(call.function.arguments)) for call in calls]
        # Text that reads like a call would be executed beside the native ones.
        said = [] if not content or "<tool_call>" in content else [content]
        text = "\n".join([*said, *(_hermes(name, arguments) for name, arguments in named)])
        if not all(name and _is_object(arguments) for name, arguments in named):
            # Servers refuse a history with arguments they cannot read: from here on it is a message like any other.
            self.messages.append({"role": "assistant", "content": text})
            return text
        given = [call.id for call in calls]
        unique = len(set(given)) == len(given) and all(given)
        self._pending = given if unique else [f"call_{self._num_turns}_{i}" for i in range(len(calls))]
        self.messages.append(
            {
                "role": "assistant",
                "content": content or None,
                "tool_calls": [
                    {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
                    for call_id, (name, arguments) in zip(self._pending, named, strict=True)
                ],
            }
        )
        return text

    def _count(self, usage: Any) -> int | None:
        """Adds the tokens of an answer; returns how many were written, where the server says so."""
        if usage is None:
            return None
        written = usage.completion_tokens or 0
        self.usage["prompt_tokens"] += usage.prompt_tokens or 0
        self.usage["action_tokens"] += written
        return written

    def _finish(self, reason: str | None, written: int | None) -> FinishReason:
        if reason != "length":
            return "stop"
        limit = self._agent.max_tokens
        return "context" if limit is not None and written is not None and 0 < written < limit else "length"


def _enveloped(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    return tool if "function" in tool else {"type": "function", "function": tool}


def _arguments(arguments: Any) -> str:
    """The arguments as JSON text; none at all are an empty object, as some servers write it."""
    if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
        return "{}"
    return arguments if isinstance(arguments, str) else json.dumps(arguments)


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _hermes(name: str, arguments: str) -> str:
    """A call as text, its arguments as the server wrote them: whether they can be read is for the environment to say.

    What would read as the end of the call inside an argument is written with the escape that JSON has for `<`.
    """
    body = f'{{"name": {json.dumps(name)}, "arguments": {arguments}}}'.replace("</tool_call>", "\\u003c/tool_call>")
    return f"<tool_call>{body}</tool_call>"
