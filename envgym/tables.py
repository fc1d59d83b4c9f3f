"""Reports and episodes as text for a terminal."""

from __future__ import annotations

from collections.abc import Mapping

from rich.table import Table

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
    row("return", [_with_error(r.mean_return, r.return_error) for r in reports])
    for component in sorted({name for r in reports for name in r.components}):
        row(f"  {component}", [f"{r.components.get(component, 0.0):.3f}" for r in reports])
    row("reward per turn", [f"{r.reward_per_turn:.3f}" for r in reports])
    for ending in sorted({name for r in reports for name in r.endings}):
        row(f"ended: {ending}", [f"{r.endings.get(ending, 0.0):.0%}" for r in reports])
    row("turns", [f"{r.turns:.1f}" for r in reports])
    row("sampled tokens", [f"{r.action_tokens:.1f}" if r.action_tokens else "-" for r in reports])
    row("actions in error", [f"{r.action_errors:.2f}" for r in reports])
    row("episodes", [str(r.episodes) for r in reports])
    row("failed episodes", [str(r.failed) for r in reports])
    return table


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
