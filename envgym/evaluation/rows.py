"""Reports as the rows of a table, and the table as plain text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from envgym.evaluation.results import EnvironmentReport

OVERALL = "overall"
"""In place of the environment's id in a report over several."""

PLAIN_WIDTH = 100
"""Characters of a line of plain text; more columns than fit go into a table of their own below."""

Row = tuple[str, list[str]]


def report_rows(reports: Sequence[EnvironmentReport]) -> list[Row]:
    """What is shown of reports side by side: the name of each row and its cells, one for each report.

    What nobody knows, for example a score where no episode has finished, is "-".
    """
    rows: list[Row] = [("success", [_with_error(r.success, r.success_error) for r in reports])]
    for k in _shown_ks(reports):
        rows.append((f"  pass@{k}", [_with_error(r.pass_at_k.get(k), r.pass_at_k_error.get(k)) for r in reports]))
        rows.append((f"  pass^{k}", [_with_error(r.pass_hat_k.get(k), r.pass_hat_k_error.get(k)) for r in reports]))
    rows.append(("return", [_with_error(r.mean_return, r.return_error) for r in reports]))
    for name in sorted({name for r in reports for name in r.components}):
        means = [_unless_idle(r, r.components.get(name, 0.0)) for r in reports]
        errors = [r.component_errors.get(name) for r in reports]
        rows.append((f"  {name}", [_with_error(mean, error) for mean, error in zip(means, errors, strict=True)]))
    rows.append(("reward per turn", [_number(r.reward_per_turn, ".3f") for r in reports]))
    for ending in sorted({name for r in reports for name in r.endings}):
        name = ending if ending == "terminated" else f"truncated: {ending}"
        rows.append((name, [_number(_unless_idle(r, r.endings.get(ending, 0.0)), ".0%") for r in reports]))
    rows.append(("turns", [_number(r.turns, ".1f") for r in reports]))
    rows.append(("sampled tokens", [_number(r.action_tokens or None, ".1f") for r in reports]))
    if any(r.prompt_tokens for r in reports):
        rows.append(("prompt tokens", [_number(r.prompt_tokens or None, ".1f") for r in reports]))
    rows.append(("seconds", [_number(r.seconds, ".2f") for r in reports]))
    rows.append(("actions in error", [_number(r.action_errors, ".2f") for r in reports]))
    rows.append(("episodes", [str(r.episodes) for r in reports]))
    if any(r.tasks != r.episodes for r in reports):
        rows.append(("tasks", [str(r.tasks) for r in reports]))
    if any(r.judged not in (0, r.episodes) for r in reports):
        rows.append(("episodes with a verdict", [str(r.judged) for r in reports]))
    rows.append(("failed episodes", [f"{r.failed} ({r.failed_share:.0%})" if r.failed else "0" for r in reports]))
    return rows


def side_by_side(
    columns: Mapping[str, EnvironmentReport], width: int, *, margin: int = 2
) -> list[dict[str, EnvironmentReport]]:
    """Columns in groups, each as many as fit beside the names of the rows; at least one.

    Args:
        columns: Reports by the name of their column.
        width: Characters of a line.
        margin: Characters between columns.
    """
    names = report_rows(list(columns.values()))
    first = max(len(name) for name, _ in names)
    groups: list[dict[str, EnvironmentReport]] = []
    used = width
    for number, (name, report) in enumerate(columns.items()):
        needed = margin + max(len(name), *(len(cells[number]) for _, cells in names))
        if used + needed > width:
            groups.append({})
            used = margin + first
        groups[-1][name] = report
        used += needed
    return groups


def failure_lines(columns: Mapping[str, EnvironmentReport]) -> list[str]:
    """The commonest failures of each report, one line each."""
    return [
        f"{name}: failed {'once' if number == 1 else f'{number} times'}: {failure}"
        for name, report in columns.items()
        if report.env_id != OVERALL or len(columns) == 1
        for failure, number in report.failures.items()
    ]


def plain_table(title: str, columns: Mapping[str, EnvironmentReport]) -> str:
    """Reports side by side as plain text, with what made episodes fail below."""
    parts = [title]
    for group in side_by_side(columns, PLAIN_WIDTH):
        rows: list[Row] = [("", list(group)), *report_rows(list(group.values()))]
        first = max(len(name) for name, _ in rows)
        widths = [max(len(cells[column]) for _, cells in rows) for column in range(len(group))]
        parts += [
            f"{name:<{first}}" + "".join(f"  {cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
            for name, cells in rows
        ]
    return "\n".join([*parts, *failure_lines(columns)])


def _shown_ks(reports: Sequence[EnvironmentReport]) -> list[int]:
    """2, 4, 8, ... and the number of attempts; every k up to 4."""
    most = max((k for r in reports for k in r.pass_at_k), default=1)
    return [k for k in range(2, most + 1) if k <= 4 or k == most or k & (k - 1) == 0]


def _unless_idle(report: EnvironmentReport, value: float) -> float | None:
    """The value, or None where no episode has finished."""
    return value if report.episodes else None


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else f"{value:{form}}"


def _with_error(value: float | None, error: float | None) -> str:
    return "-" if value is None else f"{value:.3f} ± {error or 0.0:.3f}"
