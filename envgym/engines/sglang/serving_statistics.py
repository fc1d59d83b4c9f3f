"""What a served policy counts."""

from __future__ import annotations

from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class ServingStatistics:
    """What a served policy has done so far.

    Attributes:
        turns: Turns that were returned.
        tokens: Tokens of those turns.
        prompt_tokens: Tokens of their prompts.
        cached_prompt_tokens: How many of these a server had computed before.
        retries: Generations that were asked for again.
        aborted: Generations that were told to end early, because nobody waited for them any more.
        requests: Generations asked for, by server address.
        out_of_service: Why servers are out of service, by address.
    """

    turns: int = 0
    tokens: int = 0
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    retries: int = 0
    aborted: int = 0
    requests: dict[str, int] = field(default_factory=dict)
    out_of_service: dict[str, str] = field(default_factory=dict)

    def plus(self, **more: int) -> ServingStatistics:
        """With more of the named counts."""
        return replace(self, **{name: getattr(self, name) + count for name, count in more.items()})

    @property
    def cached_share(self) -> float:
        """Share of the prompt tokens that a server had in its prefix cache."""
        return self.cached_prompt_tokens / self.prompt_tokens if self.prompt_tokens else 0.0
