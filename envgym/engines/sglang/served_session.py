"""What the served policy remembers of an episode."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from envgym.engines.sglang.request import encode_tokens
from envgym.engines.sglang.routing import RoutedServer
from envgym.types import Completion


@dataclass(eq=False, slots=True)
class ServedSession:
    """One episode, as `SGLangPolicy` knows it.

    Attributes:
        tokens: The tokens as last seen: the last prompt and its completion.
        encoded: They, as JSON.
        server: Where it generates; None until it first does.
        turn: The turn under way, and its event loop.
        closed: Whether the session has ended.
    """

    id: int
    tokens: list[int] = field(default_factory=list)
    encoded: str = ""
    server: RoutedServer | None = None
    turn: tuple[asyncio.Task[Completion], asyncio.AbstractEventLoop] | None = None
    closed: bool = False

    def extend(self, token_ids: list[int]) -> None:
        """Appends tokens."""
        if token_ids:
            self.encoded += ("," if self.tokens else "") + encode_tokens(token_ids)
            self.tokens += token_ids
