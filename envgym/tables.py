"""Reports and episodes as text for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.table import Table

from envgym.evaluation.comparison import Comparison
from envgym.evaluation.results import EnvironmentReport
from envgym.types import Trajectory


def report_table(title: str, columns: Mapping[str, EnvironmentReport]) -> Table:
    """Evaluations side by side, one column each.

    Args:
        title: Above the table.
        columns: Reports by the name of their column.
    """
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for name in columns:
        table.add_column(name, justify="right")
    reports = list(columns.values())

    def row(name: str, cells: list[str]) -> None:
        table.add_row(name, *cells)

    row("success", [_with_error(r.success, r.success_error) for r in reports])
    for k in _shown_ks(reports):
        row(f"  pass@{k}", [_with_error(r.pass_at_k.get(k), r.pass_at_k_error.get(k)) for r in reports])
        row(f"  pass^{k}", [_with_error(r.pass_hat_k.get(k), r.pass_hat_k_error.get(k)) for r in reports])
    row("return", [_with_error(r.mean_return, r.return_error) for r in reports])
    for component in sorted({name for r in reports for name in r.components}):
        row(
            f"  {component}",
            [_with_error(r.components.get(component, 0.0), r.component_errors.get(component)) for r in reports],
        )
    row("reward per turn", [f"{r.reward_per_turn:.3f}" for r in reports])
    for ending in sorted({name for r in reports for name in r.endings}):
        name = ending if ending == "terminated" else f"truncated: {ending}"
        row(name, [f"{r.endings.get(ending, 0.0):.0%}" for r in reports])
    row("turns", [f"{r.turns:.1f}" for r in reports])
    row("sampled tokens", [f"{r.action_tokens:.1f}" if r.action_tokens else "-" for r in reports])
    if any(r.prompt_tokens for r in reports):
        row("prompt tokens", [f"{r.prompt_tokens:.1f}" if r.prompt_tokens else "-" for r in reports])
    row("seconds", [f"{r.seconds:.2f}" for r in reports])
    row("actions in error", [f"{r.action_errors:.2f}" for r in reports])
    row("episodes", [str(r.episodes) for r in reports])
    if any(r.tasks != r.episodes for r in reports):
        row("tasks", [str(r.tasks) for r in reports])
    if any(r.judged not in (0, r.episodes) for r in reports):
        row("episodes with a verdict", [str(r.judged) for r in reports])
    row("failed episodes", [f"{r.failed} ({r.failed_share:.0%})" if r.failed else "0" for r in reports])
    return table


def _shown_ks(reports: Sequence[EnvironmentReport]) -> list[int]:
    """2, 4, 8, ... and the number of attempts; every k up to 4."""
    most = max((k for r in reports for k in r.pass_at_k), default=1)
    return [k for k in range(2, most + 1) if k <= 4 or k == most or k & (k - 1) == 0]


def comparison_table(comparison: Comparison, a: str, b: str) -> Table:
    """Two evaluations and their paired difference, one row for each environment and measure.

    Args:
        comparison: What to show.
        a, b: Names of the two folders.
    """
    names = f"A: {comparison.agent_a} ({a})\nB: {comparison.agent_b} ({b})"
    table = Table(title=f"{names}\nB - A with standard error and 95 % interval", title_justify="left")
    for name in ("", "measure"):
        table.add_column(name, no_wrap=True)
    for name in ("A", "B", "B - A", "interval", "pairs"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in comparison.rows:
        interval = "-" if row.low is None or row.high is None else f"[{row.low:+.3f}, {row.high:+.3f}]"
        error = "" if row.error is None else f" ± {row.error:.3f}"
        table.add_row(
            row.env_id,
            row.measure,
            f"{row.mean_a:.3f}",
            f"{row.mean_b:.3f}",
            f"{row.difference:+.3f}{error}",
            interval,
            str(row.pairs),
        )
    return table


def left_out(comparison: Comparison) -> list[str]:
    """What was compared and what was not, one line each."""
    lines = [f"{comparison.pairs} tasks were played in both"]
    for name, tasks in (("A", comparison.only_a), ("B", comparison.only_b)):
        lines += [f"left out: {number} tasks of {env_id}, finished in {name} alone" for env_id, number in tasks.items()]
    for name, number in (("A", comparison.failed_a), ("B", comparison.failed_b)):
        if number:
            lines.append(f"left out: {number} episodes of {name}, which failed")
    return [*lines, *(f"note: {note}" for note in comparison.notes)]


def _with_error(value: float | None, error: float | None) -> str:
    return "-" if value is None else f"{value:.3f} ± {error or 0.0:.3f}"


def episode_text(trajectory: Trajectory) -> str:
    """An episode as lines: observation, action and reward of each turn, then how it ended."""
    lines = [f"{trajectory.env_id}, seed {trajectory.seed}"]
    for number, turn in enumerate(trajectory.turns, start=1):
        parts = ", ".join(f"{name} {value:+.2f}" for name, value in turn.reward_components.items())
        paid = f"   reward {turn.reward:+.2f}" + (f" ({parts})" if parts else "")
        reward = paid if turn.executed else "   not executed"
        lines += [f"  {number}  {_one_line(turn.observation)}", f"     > {_one_line(turn.action)}{reward}"]
    if trajectory.final_observation:
        lines.append(f"     {_one_line(trajectory.final_observation)}")
    outcome = "" if trajectory.success is None else (", solved" if trajectory.success else ", not solved")
    if trajectory.failure is not None:
        outcome = f": {trajectory.failure}"
    return "\n".join([*lines, f"  {trajectory.ending}{outcome}, return {trajectory.total_reward:+.2f}"])


def _one_line(text: str) -> str:
    return text.replace("\n", "\n     ")
