"""Spans of sampled tokens by the version of the weights that drew them."""

from __future__ import annotations

from envgym.types import VersionSpan


def append_span(spans: list[VersionSpan], span: VersionSpan) -> None:
    """Appends a span, or lengthens the last one where the new one goes on with the same version."""
    if spans and spans[-1].version == span.version and spans[-1].end == span.start:
        span = VersionSpan(spans.pop().start, span.end, span.version)
    spans.append(span)
