"""The games: what each is called in the package, what moves look like, and where the package needs a correction."""

from __future__ import annotations

from itertools import product

from envgym.environments.text_arena.environment import TextArena
from envgym.environments.text_arena.solvers import is_solvable_traffic

_CELLS = tuple(f"[{row} {column}]" for row, column in product(range(8), repeat=2))


class TextArena2048(TextArena):
    """Slide and merge tiles up to 2048. Without a limit of its own: cut after 1,000 turns."""

    game = "2048"
    max_turns = 1000
    examples = ("[Up]", "[Down]", "[Left]", "[Right]")


class TextArenaBandit(TextArena):
    """Press five buttons twenty times, then name the one that pays most often.

    The package pays the regret of the answer, so nothing for the right one and more for a worse one; here the right one
    pays 1 and a wrong one nothing.
    """

    game = "Bandit"
    announces_limit = True
    examples = ("[red]", "[blue]", "[green]", "[yellow]", "[purple]")

    def payment(self, reward: float) -> float:
        return 1.0 if reward == 0 else min(reward, 0.0)


class TextArenaBlackjack(TextArena):
    """Five hands of blackjack; pays the share of hands won, and has no notion of success."""

    game = "Blackjack"
    announces_limit = True
    reports_success = False
    examples = ("[Hit]", "[Stand]")


class TextArenaCountdown(TextArena):
    """Combine six numbers to reach a target. Numbers and target are drawn; the package's own are always the same."""

    game = "Countdown"
    settings = {"numbers": None, "target": None}  # noqa: RUF012 - a ClassVar of the base class
    examples = tuple(f"[{i} {j} {op}]" for i, j, op in product(range(6), range(6), "+-*/") if i != j)


class TextArenaCrosswords(TextArena):
    """Fill three words into a crossword, one letter a turn."""

    game = "Crosswords"
    examples = tuple(f"[{row} {column} {letter}]" for row, column, letter in product(range(12), range(12), "aeinrst"))


class TextArenaCryptarithm(TextArena):
    """SEND + MORE = MONEY: one digit for every letter. The same puzzle for every seed."""

    game = "Cryptarithm"
    examples = tuple(f"[{letter} {digit}]" for letter, digit in product("SENDMORY", range(10)))


class TextArenaFifteenPuzzle(TextArena):
    """Slide fifteen tiles into order. Only boards that can be solved are drawn, unlike in the package."""

    game = "FifteenPuzzle"
    examples = ("[up]", "[down]", "[left]", "[right]")

    def is_playable(self) -> bool:
        self._native.state.set_winners = self._win  # the package calls a method its state does not have
        tiles = [tile or 0 for row in self._native.board for tile in row]
        inversions = sum(0 < b < a for i, a in enumerate(tiles) for b in tiles[i:])
        return (inversions + 3 - tiles.index(0) // 4) % 2 == 0 and not self._native._is_solved()

    def _win(self, player_ids: list[int], reason: str) -> None:
        self._native.state.set_outcome(reward=1.0, reason=reason)


class TextArenaFrozenLake(TextArena):
    """Cross a frozen lake of 4x4 cells without falling into one of three holes."""

    game = "FrozenLake"
    examples = ("[up]", "[down]", "[left]", "[right]")


class TextArenaGuessTheNumber(TextArena):
    """Find a number from 1 to 20 with ten guesses."""

    game = "GuessTheNumber"
    announces_limit = True
    examples = tuple(f"[{number}]" for number in range(1, 21))


class TextArenaLightsOut(TextArena):
    """Switch off all lights of a 5x5 grid, where a press switches the neighbours too, with twenty presses."""

    game = "LightsOut"
    announces_limit = True
    examples = tuple(f"[{row} {column}]" for row, column in product(range(5), repeat=2))

    def is_playable(self) -> bool:
        return any(map(any, self._native.state.game_state["grid"]))


class TextArenaLogicPuzzle(TextArena):
    """Find out from clues what belongs together; a turn marks one cell of a table."""

    game = "LogicPuzzle"
    examples = ("[alice park X]", "[alice park O]", "[bob library X]", "[bob library O]")


class TextArenaMastermind(TextArena):
    """Find a code of four different digits with twenty guesses."""

    game = "Mastermind"
    announces_limit = True
    examples = tuple(f"[{a} {b} {c} {d}]" for a, b, c, d in product(range(1, 7), repeat=4) if len({a, b, c, d}) == 4)


class TextArenaMinesweeper(TextArena):
    """Uncover an 8x8 field with ten mines. Hitting one is an invalid move: the first is forgiven."""

    game = "Minesweeper"
    examples = _CELLS


class TextArenaPegJump(TextArena):
    """Jump pegs over pegs on a triangle until one is left. The same board for every seed."""

    game = "PegJump"
    examples = tuple(f"[{a} {b}]" for a, b in product(range(1, 16), repeat=2) if a != b)


class TextArenaRushHour(TextArena):
    """Move cars out of the way of the red one. Without a limit of its own: cut after 100 turns."""

    game = "RushHour"
    max_turns = 100
    examples = tuple(f"[{car}{sign}]" for car, sign in product("ABCDFGHIJX", "+-"))

    def prepare(self) -> None:
        size = self._native.BOARD_SIZE
        self._native._is_solvable = lambda cars: is_solvable_traffic(cars, size)


class TextArenaSecretary(TextArena):
    """See five numbers one by one, and accept the highest."""

    game = "Secretary"
    announces_limit = True
    examples = ("[accept]", "[continue]")


class TextArenaSet(TextArena):
    """Find Sets of three cards for twenty turns; pays one for each, and has no notion of success.

    The package takes the same card three times for a Set; here that is an invalid move.
    """

    game = "Set"
    announces_limit = True
    reports_success = False
    examples = tuple(f"[{a}, {b}, {c}]" for a, b, c in product(range(1, 13), repeat=3) if a < b < c)

    def refusal(self, move: str) -> str | None:
        numbers = [part.strip() for part in move.strip("[]").split(",")]
        return "The three cards must differ." if len({part.lstrip("0") for part in numbers}) < len(numbers) else None


class TextArenaSlitherlink(TextArena):
    """Draw a loop on a 4x4 grid so that each number has that many edges around it, with 200 strokes."""

    game = "Slitherlink"
    announces_limit = True
    examples = tuple(f"[{kind} {row} {column}]" for kind, row, column in product("hv", range(4), range(4)))


class TextArenaSokoban(TextArena):
    """Push three boxes onto their goals in a room of 6x6 cells.

    The package looks at up to 300,000 positions to find one to start from, for half a minute; here at 5,000.
    """

    game = "Sokoban"
    examples = ("[up]", "[down]", "[left]", "[right]")


class TextArenaSudoku(TextArena):
    """Fill the gaps of a Sudoku; a wrong number is an invalid move."""

    game = "Sudoku"
    examples = tuple(f"[{row} {column} {number}]" for row, column, number in product(range(1, 10), repeat=3))


class TextArenaThreeCardMonte(TextArena):
    """Follow a ball under three cups through ten swaps, then say where it is."""

    game = "ThreeCardMonte"
    examples = ("[0]", "[1]", "[2]")


class TextArenaTowerOfHanoi(TextArena):
    """Move a tower of three disks. The same board for every seed."""

    game = "TowerOfHanoi"
    examples = tuple(f"[{a} {b}]" for a, b in product("ABC", repeat=2) if a != b)
