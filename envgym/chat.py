"""The client of chat endpoints that speak OpenAI's protocol, for agents, environments and judges."""

from __future__ import annotations

import asyncio
import os
import re
import weakref
from collections.abc import Mapping
from typing import Any

from envgym.errors import EnvGymError, MissingDependencyError, UnplayableError

_CONTEXT = re.compile(
    r"context[ _]length|context[ _]window|context size|exceed_context|prompt is too long|input is too long"
    r"|maximum number of tokens|reduce the length of|max_model_len|must be <= \d+",
    re.IGNORECASE,
)
"""How servers (OpenAI, vLLM, SGLang, llama.cpp, TGI, Gemini, Anthropic) say that a prompt does not fit."""

_REFUSALS = frozenset({400, 413, 422})
"""Statuses of the server's answer to a request it will never accept."""


class PromptRefused(EnvGymError):
    """A server says that a prompt does not fit the context of its model."""


class ChatEndpoint:
    """`/chat/completions` of a server: OpenAI's own, vLLM, SGLang, llama.cpp, Ollama, and many more.

    Connection errors, time-outs and the statuses 408, 409, 429 and 5xx are tried again with growing pauses, or after
    the pause the server asks for.

    Args:
        model: Name of the model at the server, or `NAME@BASE_URL`.
        base_url: The server's address, `http://localhost:8000/v1`; None takes OPENAI_BASE_URL, or OpenAI's own.
        api_key: None takes OPENAI_API_KEY; a server with an address of its own may need none.
        timeout_s: Longest wait for an answer, in seconds.
        max_retries: How often a request is tried again.

    Raises:
        ValueError: There is no model, a number is out of its range, or there is no key for OpenAI's own server.
        MissingDependencyError: The openai package is not installed.
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        timeout_s: float = 300.0,
        max_retries: int = 5,
    ) -> None:
        try:
            import openai
        except ImportError as error:
            raise MissingDependencyError(
                "a chat endpoint needs the openai package: pip install 'envgym[openai]'"
            ) from error
        self.model, base_url = _split_address(model, base_url)
        if not self.model:
            raise ValueError("name a model: openai:MODEL or openai:MODEL@http://host:port/v1")
        if timeout_s <= 0 or max_retries < 0:
            raise ValueError(f"timeout_s must be positive and max_retries >= 0, got {timeout_s} and {max_retries}")
        self.base_url = base_url or os.environ.get("OPENAI_BASE_URL") or None
        api_key = api_key or os.environ.get("OPENAI_API_KEY")
        if not api_key and self.base_url is None:
            raise ValueError("OpenAI's server needs a key: set OPENAI_API_KEY, or name another server's base_url")
        self._openai = openai
        self._options: dict[str, Any] = {
            "base_url": self.base_url,
            "api_key": api_key or "none",
            "timeout": timeout_s,
            "max_retries": max_retries,
            # A kept connection would outlive the event loop it belongs to.
            "default_headers": {"Connection": "close"},
        }
        self._clients: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Any] = weakref.WeakKeyDictionary()

    async def complete(self, request: Mapping[str, Any]) -> Any:
        """The server's answer to a request, as the openai package gives it.

        Args:
            request: Fields of the request beside the model, `extra_body` for what the protocol does not know.

        Raises:
            PromptRefused: The server says that the prompt does not fit the context.
            UnplayableError: The server refuses the key or does not know the model.
            ConnectionError: The server cannot be reached or does not answer in time, after all retries.
            ValueError: The answer cannot be read.
            openai.APIStatusError: Any other answer than success, after all retries.
        """
        where = self.base_url or "api.openai.com"
        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            self._clients[loop] = self._openai.AsyncOpenAI(**self._options)
        client: Any = self._clients[loop]
        try:
            answer = await client.chat.completions.create(model=self.model, **request)
        except (self._openai.AuthenticationError, self._openai.NotFoundError) as error:
            raise UnplayableError(f"'{where}' refuses model '{self.model}': {error.message}") from error
        except self._openai.APIStatusError as error:
            if error.status_code in _REFUSALS and _CONTEXT.search(f"{error.code} {error.message}"):
                raise PromptRefused(error.message) from error
            raise
        except self._openai.APIConnectionError as error:
            reason = f"{type(error.__cause__).__name__}: {error.__cause__}".removesuffix(": ")
            raise ConnectionError(f"no answer from '{where}': {error.message} ({reason})") from error
        except (ValueError, self._openai.APIResponseValidationError) as error:
            raise ValueError(f"the answer of '{where}' is not valid JSON: {error}") from error
        choices = getattr(answer, "choices", None)
        if not choices or getattr(choices[0], "message", None) is None:
            raise ValueError(f"the answer of '{where}' holds no message: {str(answer)[:200]!r}")
        return answer


def _split_address(model: str, base_url: str | None) -> tuple[str, str | None]:
    """Name and address of `NAME@http...`; a name may itself contain an @."""
    name, at, url = model.rpartition("@")
    if not at or not url.startswith(("http://", "https://")):
        return model, base_url
    if base_url is not None:
        raise ValueError(f"the address is given twice: '{url}' and '{base_url}'")
    return name, url
