"""Plans made from the hidden state of a game: the moves from here to its solution, or the next of them.

A plan is a list of moves in square brackets; an empty one says that no way is known.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from functools import cache
from heapq import heappop, heappush
from typing import Any, TypeVar

State = TypeVar("State", bound=Hashable)

_STEPS = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}


def breadth_first(
    start: State,
    neighbours: Callable[[State], Iterable[tuple[str, State]]],
    is_goal: Callable[[State], bool],
    most: int = 300_000,
) -> list[str]:
    """The moves of a shortest way from a state to a goal; empty where there is none among the first `most` states."""
    came: dict[State, tuple[State, str]] = {start: (start, "")}
    queue = deque([start])
    while queue and len(came) < most:
        here = queue.popleft()
        if is_goal(here):
            return _way(came, here)
        for move, there in neighbours(here):
            if there not in came:
                came[there] = here, move
                queue.append(there)
    return []


def _way(came: dict[Any, tuple[Any, str]], end: Any) -> list[str]:
    moves: list[str] = []
    while came[end][1]:
        end, move = came[end]
        moves.append(f"[{move}]")
    return moves[::-1]


def bandit(game: Any) -> list[str]:
    chances = game.state.game_state["ground_truth"]
    return [f"[{max(chances, key=chances.get)}]"]


def blackjack(game: Any) -> list[str]:
    """Hits below 17, and below 12 against a weak card; a soft hand below 18."""
    hand, dealer = game.state.game_state["player_hand"], game.state.game_state["dealer_hand"][0][:-1]
    total = game._hand_score(hand)
    hard = sum(1 if card[:-1] == "A" else 10 if card[:-1] in "JQK" else int(card[:-1]) for card in hand)
    enough = 18 if total != hard else 12 if dealer in ("4", "5", "6") else 17
    return ["[Hit]" if total < enough else "[Stand]"]


def countdown(game: Any) -> list[str]:
    """The shortest calculation that gives the target, else the one that comes nearest."""
    target, start = game.target, tuple(game.numbers)
    came: dict[tuple[int, ...], tuple[tuple[int, ...], str]] = {start: (start, "")}
    nearest, layer = (abs(game.best_value - target), start), [start]
    while layer:
        following: dict[tuple[int, ...], list[int]] = {}
        for numbers in layer:
            for i, j in itertools.permutations(range(len(numbers)), 2):
                a, b = numbers[i], numbers[j]
                for op, result in (
                    ("+", a + b),
                    ("-", a - b),
                    ("*", a * b),
                    ("/", a // b if b and a % b == 0 else None),
                ):
                    if result is None or result <= 0 or result > 100_000 or (op in "+*" and i > j):
                        continue
                    rest = tuple(n for k, n in enumerate(numbers) if k not in (i, j))
                    there = (*rest, result)
                    if there not in came:
                        came[there] = numbers, f"{i} {j} {op}"
                        following[there] = []
                        nearest = min(nearest, (abs(result - target), there), key=lambda entry: entry[0])
                    if result == target:
                        return _way(came, there)
        layer = list(following)
    return _way(came, nearest[1])


def crosswords(game: Any) -> list[str]:
    board, solution = game.state.game_state["board"], game.state.game_state["solution"]
    size = range(len(board))
    return [f"[{r} {c} {solution[r][c]}]" for r in size for c in size if board[r][c] == "_"]


@cache
def _digits(addends: tuple[str, ...], result: str) -> dict[str, int]:
    """The digits of a cryptarithm: letters are tried one by one, and a column is checked once its letters are known."""
    columns = [([word[-1 - k] for word in addends if k < len(word)], result[-1 - k]) for k in range(len(result))]
    letters = list(dict.fromkeys(letter for terms, total in columns for letter in (*terms, total)))
    leading = {word[0] for word in (*addends, result)}

    def fits(digits: dict[str, int]) -> bool:
        carry = 0
        for terms, total in columns:
            if any(letter not in digits for letter in (*terms, total)):
                return True
            carry, digit = divmod(carry + sum(digits[letter] for letter in terms), 10)
            if digit != digits[total]:
                return False
        return carry == 0

    def search(digits: dict[str, int]) -> dict[str, int]:
        if len(digits) == len(letters):
            return digits
        letter = letters[len(digits)]
        for digit in range(letter in leading, 10):
            if digit not in digits.values():
                tried = {**digits, letter: digit}
                if fits(tried) and (found := search(tried)):
                    return found
        return {}

    return search({})


def cryptarithm(game: Any) -> list[str]:
    """Gives each letter its digit; a digit that a wrong letter holds is freed by moving that letter first."""
    right = _digits(tuple(game.addends), game.result)
    wrong = [letter for letter, digit in right.items() if game.mapping.get(letter) != digit]
    for letter in wrong:
        if right[letter] not in game.digit_used:
            return [f"[{letter} {right[letter]}]"]
    free = [digit for digit in range(1, 10) if digit not in game.digit_used]
    return [f"[{game.digit_used[right[letter]]} {free[0]}]" for letter in wrong[:1] if free]


def fifteen_puzzle(game: Any) -> list[str]:
    """A way found by weighted A* on the sum of distances; not the shortest."""
    start = tuple(tile or 0 for row in game.board for tile in row)
    goal = (*range(1, 16), 0)
    moves = {"up": 4, "down": -4, "left": 1, "right": -1}

    def distance(tile: int, cell: int) -> int:
        return abs((tile - 1) // 4 - cell // 4) + abs((tile - 1) % 4 - cell % 4)

    came: dict[tuple[int, ...], tuple[tuple[int, ...], str]] = {start: (start, "")}
    cost = {start: 0}
    left = sum(distance(tile, cell) for cell, tile in enumerate(start) if tile)
    heap = [(5 * left, 0, left, start)]
    for order in itertools.count(1):
        if not heap or order > 200_000:
            break
        _, _, left, here = heappop(heap)
        if here == goal:
            return _way(came, here)
        gap = here.index(0)
        for move, offset in moves.items():
            cell = gap + offset
            if not 0 <= cell < 16 or (abs(offset) == 1 and cell // 4 != gap // 4):
                continue
            board = list(here)
            board[gap], board[cell] = board[cell], 0
            there = tuple(board)
            if there not in cost or cost[here] + 1 < cost[there]:
                cost[there] = cost[here] + 1
                came[there] = here, move
                new = left + distance(here[cell], gap) - distance(here[cell], cell)
                heappush(heap, (cost[there] + 5 * new, order, new, there))
    return []


def frozen_lake(game: Any) -> list[str]:
    grid, goal = game.state.game_state["grid"], tuple(game.state.game_state["goal_pos"])

    def neighbours(cell: tuple[int, int]) -> Iterable[tuple[str, tuple[int, int]]]:
        for move, (down, right) in _STEPS.items():
            row, column = cell[0] + down, cell[1] + right
            if 0 <= row < game.size and 0 <= column < game.size and grid[row][column] != "H":
                yield move, (row, column)

    return breadth_first(tuple(game.state.game_state["player_pos"]), neighbours, lambda cell: cell == goal)


def guess_the_number(game: Any) -> list[str]:
    return [f"[{game.game_number}]"]


def lights_out(game: Any) -> list[str]:
    """The fewest presses: the presses of the first row decide all others, so each of their sets is tried."""
    grid, size = game.state.game_state["grid"], game.size
    best: list[tuple[int, int]] | None = None
    for first in itertools.product((False, True), repeat=size):
        lights = [list(row) for row in grid]
        presses: list[tuple[int, int]] = []
        for row in range(size):
            for column in range(size):
                if first[column] if row == 0 else lights[row - 1][column]:
                    presses.append((row, column))
                    game._toggle_lights(lights, row, column)
        if not any(lights[-1]) and (best is None or len(presses) < len(best)):
            best = presses
    return [f"[{row} {column}]" for row, column in best or ()]


def logic_puzzle(game: Any) -> list[str]:
    return [
        f"[{row} {column} {mark}]"
        for name, table in game.game_board_solution.items()
        for row, marks in table.items()
        for column, mark in marks.items()
        if game.game_board[name][row][column] != mark
    ]


def mastermind(game: Any) -> list[str]:
    return [f"[{' '.join(map(str, game.state.game_state['secret_code']))}]"]


def minesweeper(game: Any) -> list[str]:
    """The next covered cell without a mine; mines are laid after the first move, which is always safe."""
    cells = itertools.product(range(game.rows), range(game.cols))
    return next(([f"[{r} {c}]"] for r, c in cells if not game.revealed[r][c] and game.grid[r][c] != -1), [])


@cache
def _jumps(board: tuple[bool, ...], allowed: tuple[tuple[int, int, int], ...]) -> tuple[str, ...] | None:
    if sum(board) == 1:
        return ()
    for start, over, end in allowed:
        if board[start] and board[over] and not board[end]:
            after = list(board)
            after[start], after[over], after[end] = False, False, True
            if (rest := _jumps(tuple(after), allowed)) is not None:
                return (f"[{start} {end}]", *rest)
    return None


def peg_jump(game: Any) -> list[str]:
    return list(_jumps(tuple(game.state.game_state["board"]), tuple(game.ALLOWED_MOVES)) or ())


Places = tuple[int, ...]
"""The column or row of every car, whichever it can change."""


def _traffic(cars: list[Any], size: int) -> tuple[Places, Callable[[Places], Iterable[tuple[str, Places]]]]:
    """Where the cars are, and the moves from any such state, in the order in which the game tries them."""

    def cells(index: int, place: int) -> list[tuple[int, int]]:
        car = cars[index]
        line = range(place, place + car.length)
        return [(car.row, k) for k in line] if car.horizontal else [(k, car.col) for k in line]

    def neighbours(places: Places) -> Iterable[tuple[str, Places]]:
        taken = {cell for index, place in enumerate(places) for cell in cells(index, place)}
        for index, place in enumerate(places):
            for sign, cell in (("+", cells(index, place + 1)[-1]), ("-", cells(index, place - 1)[0])):
                if cell not in taken and 0 <= cell[0] < size and 0 <= cell[1] < size:
                    moved = place + (1 if sign == "+" else -1)
                    yield f"{cars[index].vid}{sign}", (*places[:index], moved, *places[index + 1 :])

    return tuple(car.col if car.horizontal else car.row for car in cars), neighbours


def rush_hour(game: Any) -> list[str]:
    cars = list(game.state.game_state["vehicles"].values())
    red = next(index for index, car in enumerate(cars) if car.vid == "X")
    start, neighbours = _traffic(cars, game.BOARD_SIZE)
    return breadth_first(start, neighbours, lambda places: places[red] >= game.BOARD_SIZE - cars[red].length)


def is_solvable_traffic(cars: list[Any], size: int, most: int = 1000) -> bool:
    """What the package's own check says of a board of Rush Hour, many times faster.

    Args:
        cars: The cars.
        size: Side of the board.
        most: States after whose moves it gives up.
    """
    red = next(index for index, car in enumerate(cars) if car.vid == "X")
    start, neighbours = _traffic(cars, size)
    goal = size - cars[red].length
    if start[red] >= goal:
        return True
    seen, queue = {start}, deque([start])
    for _ in range(most):
        if not queue:
            break
        for _, there in neighbours(queue.popleft()):
            if there[red] >= goal:
                return True
            if there not in seen:
                seen.add(there)
                queue.append(there)
    return False


def secretary(game: Any) -> list[str]:
    draws = game.state.game_state["draws"]
    seen = game.state.game_state["current_idx"] - 1
    return ["[accept]" if draws[seen] == max(draws) else "[continue]"]


def find_set(game: Any) -> list[str]:
    """A Set on the board; where there is none, any three cards, before which the game deals three more."""
    board = game.state.game_state["board"]
    for triple in itertools.combinations(range(len(board)), 3):
        if all(len({board[card][trait] for card in triple}) != 2 for trait in range(4)):
            return [f"[{', '.join(str(card + 1) for card in triple)}]"]
    return ["[1, 2, 3]"]


def slitherlink(game: Any) -> list[str]:
    """The strokes that turn what is drawn into a rectangle that fits all numbers."""
    for top, left in itertools.product(range(game.R), range(game.C)):
        for bottom, right in itertools.product(range(top + 1, game.R + 1), range(left + 1, game.C + 1)):
            flat = {(row, column) for row in (top, bottom) for column in range(left, right)}
            upright = {(row, column) for row in range(top, bottom) for column in (left, right)}
            counts = (
                (clue, sum((((r, c) in flat), ((r + 1, c) in flat), ((r, c) in upright), ((r, c + 1) in upright))))
                for r, row in enumerate(game.clues)
                for c, clue in enumerate(row)
            )
            if all(clue is None or clue == count for clue, count in counts):
                strokes = [("h", edge) for edge in sorted(flat ^ game.h_edges)]
                strokes += [("v", edge) for edge in sorted(upright ^ game.v_edges)]
                return [f"[{kind} {row} {column}]" for kind, (row, column) in strokes]
    return []


def sokoban(game: Any) -> list[str]:
    room, fixed = game.room_state, game.room_fixed
    cells = list(itertools.product(range(room.shape[0]), range(room.shape[1])))
    goals = {cell for cell in cells if fixed[cell] == 2}
    floor = {cell for cell in cells if fixed[cell] != 0}
    boxes = frozenset(cell for cell in cells if room[cell] in (3, 4))
    player = (int(game.player_position[0]), int(game.player_position[1]))

    def neighbours(state: tuple[Any, frozenset[Any]]) -> Iterable[tuple[str, tuple[Any, frozenset[Any]]]]:
        (row, column), boxes = state
        for move, (down, right) in _STEPS.items():
            there = (row + down, column + right)
            if there not in floor:
                continue
            if there not in boxes:
                yield move, (there, boxes)
            elif (beyond := (there[0] + down, there[1] + right)) in floor and beyond not in boxes:
                yield move, (there, (boxes - {there}) | {beyond})

    return breadth_first((player, boxes), neighbours, lambda state: state[1] <= goals)


def sudoku(game: Any) -> list[str]:
    board = game.state.game_state["board"]
    cells = itertools.product(range(9), repeat=2)
    return [f"[{r + 1} {c + 1} {game.full_grid[r][c]}]" for r, c in cells if board[r][c] == 0]


def three_card_monte(game: Any) -> list[str]:
    return [f"[{game.ball_pos}]"]


def tower_of_hanoi(game: Any) -> list[str]:
    towers = game.state.game_state["towers"]
    start = tuple(next(name for name in "ABC" if disk in towers[name]) for disk in range(1, game.num_disks + 1))

    def neighbours(places: tuple[str, ...]) -> Iterable[tuple[str, tuple[str, ...]]]:
        for disk, place in enumerate(places):
            if place not in places[:disk]:
                for other in "ABC":
                    if other != place and other not in places[:disk]:
                        yield f"{place} {other}", (*places[:disk], other, *places[disk + 1 :])

    return breadth_first(start, neighbours, lambda places: set(places) == {"C"})


PLANS: dict[str, Callable[[Any], list[str]]] = {
    "Bandit": bandit,
    "Blackjack": blackjack,
    "Countdown": countdown,
    "Crosswords": crosswords,
    "Cryptarithm": cryptarithm,
    "FifteenPuzzle": fifteen_puzzle,
    "FrozenLake": frozen_lake,
    "GuessTheNumber": guess_the_number,
    "LightsOut": lights_out,
    "LogicPuzzle": logic_puzzle,
    "Mastermind": mastermind,
    "Minesweeper": minesweeper,
    "PegJump": peg_jump,
    "RushHour": rush_hour,
    "Secretary": secretary,
    "Set": find_set,
    "Slitherlink": slitherlink,
    "Sokoban": sokoban,
    "Sudoku": sudoku,
    "ThreeCardMonte": three_card_monte,
    "TowerOfHanoi": tower_of_hanoi,
}
"""The plan of each game that hidden state decides."""
