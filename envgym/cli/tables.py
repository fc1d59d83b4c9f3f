"""Reports and episodes as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.segment import Segments
from rich.table import Table

from envgym.evaluation.comparison import Comparison
from envgym.evaluation.results import EnvironmentReport, report_rows, side_by_side
from envgym.types import Trajectory

_UNLIMITED = 100_000
"""Characters of a line where nothing limits it."""
_NARROWEST = 10
"""Characters of a name that is folded, at least."""


def report_tables(columns: Mapping[str, EnvironmentReport], width: int) -> list[Table]:
    """Evaluations side by side, one column each, in as many tables as are needed for each to fit into a line.

    Args:
        columns: Reports by the name of their column.
        width: Characters of a line.
    """
    tables = []
    for group in side_by_side(columns, width - 4, margin=3):  # four: the frame
        tables.append(table := Table(""))
        for name in group:
            table.add_column(escape(name), justify="right")
        for name, cells in report_rows(list(group.values())):
            table.add_row(escape(name), *cells)
    return tables


def print_tables(console: Console, tables: Iterable[Table]) -> None:
    """Prints tables of which nothing is cut off.

    On a terminal that is too narrow the first column, the names, is folded. What is too wide even then, and everything
    where there is no terminal, goes out as wide as it is.
    """
    unlimited = console.options.update(width=_UNLIMITED)
    for table in tables:
        excess = Measurement.get(console, unlimited, table).maximum - console.width
        if console.is_terminal and excess > 0:
            names = table.columns[0]
            widest = max(Measurement.get(console, unlimited, cell).maximum for cell in names.cells)
            names.width, names.overflow = max(widest - excess, min(widest, _NARROWEST)), "fold"
        console.print(Segments(console.render(table, unlimited)), crop=False, end="")


def comparison_table(comparison: Comparison, a: str, b: str) -> Table:
    """Two evaluations and their paired difference, one row for each environment and measure.

    Args:
        comparison: What to show.
        a, b: Names of the two folders.
    """
    names = f"A: {named(comparison.agent_a, a)}\nB: {named(comparison.agent_b, b)}"
    table = Table(title=f"{escape(names)}\nB - A with standard error and 95 % interval", title_justify="left")
    table.add_column("")
    for name in ("A", "B", "B - A", "interval", "pairs"):
        table.add_column(name, justify="right")
    for row in comparison.rows:
        interval = "-" if row.low is None or row.high is None else f"[{row.low:+.3f}, {row.high:+.3f}]"
        difference = f"{row.difference:+.3f}" + ("" if row.error is None else f" ± {row.error:.3f}")
        means = (f"{row.mean_a:.3f}", f"{row.mean_b:.3f}")
        table.add_row(f"{escape(row.env_id)} {row.measure}", *means, difference, interval, str(row.pairs))
    return table


def named(agent: str, where: str) -> str:
    """Name of an agent, and where it comes from if that says more: `sampled (runs/quickstart)`, but `solver`."""
    return agent if agent in (where, where.rstrip("/").rpartition("/")[2]) else f"{agent} ({where})"


def left_out(comparison: Comparison) -> list[str]:
    """What was compared and what was not, one line each."""
    lines = [f"{comparison.pairs} tasks were played in both"]
    for name, tasks in (("A", comparison.only_a), ("B", comparison.only_b)):
        lines += [f"left out: {number} tasks of {env_id}, finished in {name} alone" for env_id, number in tasks.items()]
    for name, number in (("A", comparison.failed_a), ("B", comparison.failed_b)):
        if number:
            lines.append(f"left out: {number} episodes of {name}, which failed")
    return [*lines, *(f"note: {note}" for note in comparison.notes)]


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
