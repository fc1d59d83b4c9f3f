"""Tidy up a file system: find out what is there, and bring it into the state that was asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from envgym import TextEnv
from envgym.environments.file_clerk.jobs import PLACES, WORDS, draw_job
from envgym.environments.file_clerk.tree import MAX_LINES, FileError, FileTree, parent
from envgym.spaces import TextSpace
from envgym.tools import ToolEnv, ToolError, ToolResult, format_call, tool

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    from envgym.agent import Player

KEPT, CLUTTER = -0.1, -0.02


class FileClerk(ToolEnv):
    """An in-memory tree of files, a job, and tools like those of a shell; `finish` ends the episode.

    An episode::

        Delete every file whose name ends in .tmp, wherever it is.     find("*.tmp")
        /desk/hazel.tmp                                                rm(/desk/hazel.tmp)
        removed /desk/hazel.tmp                                        finish()
        finished

    The job decides which files there must be in the end, and what is in them; empty folders do not matter. Reward
    components, each the difference of a potential, so that they telescope: "progress", the share of the files to be
    changed, made or removed that are as they must be; "kept" -0.1 for each file that was to be left alone and is not
    there any more with its text (and +0.1 where it is restored); "clutter" -0.02 for each file that is not wanted at
    all. "finish" +1 where everything is as it must be; "malformed" -0.05. An operation that fails is answered with an
    error and changes nothing.

    Args:
        call_format: "function" or "hermes"; see `envgym.tools.parsing`.

    Raises:
        ValueError: An argument is out of its range.
    """

    system_prompt = (
        "Do the job on the files with ls, cat, find, grep, mkdir, mv, cp, rm and write, leave all other files as they "
        "are, then finish."
    )
    max_turns = 48

    def __init__(self, *, call_format: str = "function") -> None:
        super().__init__(call_format=call_format)
        self.action_space = TextSpace(self._examples())
        self._tree = FileTree({})
        self._before: dict[str, str] = {}
        self._expected: dict[str, str] = {}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Draws a job and its files.

        Args:
            seed: Seed of `np_random`; None continues the present stream.
            options: Unused.

        Returns:
            The job, and info.
        """
        TextEnv.reset(self, seed=seed)
        text, self._before, self._expected = draw_job(self.np_random)
        self._tree = FileTree(self._before)
        for path in self._expected:
            if path not in self._before and parent(path).strip("/") in PLACES:
                self._tree.make_folder(parent(path))
        return text, {"success": False}

    def step_info(self) -> dict[str, Any]:
        return {"success": False}

    @tool
    def ls(self, path: str = "/") -> ToolResult:
        """Lists a folder.

        Args:
            path: The folder.
        """
        return self._do(lambda: _lines(self._tree.listing(path)))

    @tool
    def cat(self, path: str) -> ToolResult:
        """Shows the text of a file.

        Args:
            path: The file.
        """
        return self._do(lambda: self._tree.read(path) or "(empty)")

    @tool
    def find(self, pattern: str) -> ToolResult:
        """Lists the files in all folders whose name matches a pattern.

        Args:
            pattern: A name in which * stands for any text and ? for any character.
        """
        return self._do(lambda: _lines(self._tree.find(pattern)))

    @tool
    def grep(self, text: str) -> ToolResult:
        """Lists the lines in all files that hold a text.

        Args:
            text: The text, as it stands in the line.
        """
        return self._do(lambda: _lines(self._tree.grep(text)))

    @tool
    def mkdir(self, path: str) -> ToolResult:
        """Makes a folder, and those above it.

        Args:
            path: The folder.
        """
        return self._do(lambda: f"made {self._tree.make_folder(path)}")

    @tool
    def mv(self, source: str, target: str) -> ToolResult:
        """Moves or renames a file or folder. A file at the target is replaced.

        Args:
            source: What is moved.
            target: Its new path, or a folder it is moved into.
        """
        return self._do(lambda: f"moved to {self._tree.move(source, target)}")

    @tool
    def cp(self, source: str, target: str) -> ToolResult:
        """Copies a file. A file at the target is replaced.

        Args:
            source: The file.
            target: The path of the copy, or a folder it is copied into.
        """
        return self._do(lambda: f"copied to {self._tree.copy(source, target)}")

    @tool
    def rm(self, path: str, recursive: bool = False) -> ToolResult:
        """Removes a file or a folder.

        Args:
            path: What is removed.
            recursive: Whether a folder is removed with everything in it.
        """
        return self._do(lambda: f"removed {self._tree.remove(path, recursive=recursive)}")

    @tool
    def write(self, path: str, content: str) -> ToolResult:
        """Writes a file, and replaces it where it exists.

        Args:
            path: The file.
            content: Its whole text.
        """
        return self._do(lambda: f"wrote {self._tree.write(path, content)}")

    @tool
    def finish(self) -> ToolResult:
        """Ends the job."""
        right = _same(self._tree.files, self._expected)
        text = "finished" if right else "not as it was asked for"
        return ToolResult(text, {"finish": float(right)}, terminal=True, success=right)

    def solver(self) -> Player:
        """A player that reads every file, works out the files there must be, and makes them so."""
        from envgym.environments.file_clerk.players import Clerk

        return Clerk(self.call_format)

    def demonstrator(self, rng: np.random.Generator) -> Player:
        """A player that leaves things out, touches the wrong files, and mistypes; about 50 % success."""
        from envgym.environments.file_clerk.players import ClumsyClerk

        return ClumsyClerk(self.call_format, rng)

    def _do(self, operation: Callable[[], str]) -> ToolResult:
        """Runs an operation and pays what it changed."""
        before = self._potentials()
        try:
            text = operation()
        except FileError as error:
            raise ToolError(str(error)) from error
        changes = {name: value - before[name] for name, value in self._potentials().items()}
        return ToolResult(text, {name: change for name, change in changes.items() if change or name == "progress"})

    def _potentials(self) -> dict[str, float]:
        """Share of the changes that are made, and what is due for files that should be there, or should not."""
        files, before, expected = self._tree.files, self._before, self._expected
        paths = before.keys() | expected.keys()
        changed = {path for path in paths if before.get(path) != expected.get(path)}
        right = {path for path in paths if _text(files.get(path)) == _text(expected.get(path))}
        return {
            "progress": len(changed & right) / len(changed),
            "kept": KEPT * len(paths - changed - right),
            "clutter": CLUTTER * len(files.keys() - paths),
        }

    def _examples(self) -> list[str]:
        """Well-formed calls for the random agent."""
        folders = [f"/{place}" for place in PLACES]
        calls: list[tuple[str, dict[str, Any]]] = [
            ("find", {"pattern": "*"}),
            ("finish", {}),
            ("mkdir", {"path": "/txt"}),
        ]
        calls += [("ls", {"path": folder}) for folder in ("/", *folders)]
        calls += [("grep", {"text": word}) for word in WORDS[:4]]
        calls += [("cat", {"path": f"{folder}/{WORDS[0]}.md"}) for folder in folders]
        calls += [("rm", {"path": f"{folder}/{word}.tmp"}) for folder in folders for word in WORDS[:4]]
        calls += [("mv", {"source": f"{folder}/{WORDS[1]}.txt", "target": "/txt"}) for folder in folders]
        calls += [("write", {"path": f"{folder}/total.txt", "content": "1000"}) for folder in folders]
        return [format_call(name, arguments, self.call_format) for name, arguments in calls]


def _lines(lines: list[str]) -> str:
    shown = [line[:200] for line in lines[:MAX_LINES]]
    return "\n".join([*shown, *(["..."] if len(lines) > MAX_LINES else [])]) or "(nothing)"


def _text(content: str | None) -> str | None:
    """A text as it is compared: blank lines and spaces at its end do not matter."""
    return None if content is None else content.rstrip()


def _same(files: dict[str, str], expected: dict[str, str]) -> bool:
    return files.keys() == expected.keys() and all(_text(files[path]) == _text(expected[path]) for path in files)
