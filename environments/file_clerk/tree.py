"""A small file system in memory. Nothing in here touches the real one."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping

MAX_FILES = 200
MAX_CONTENT = 4000
MAX_LINES = 40
"""Lines that a listing shows."""
_NAME = re.compile(r"[A-Za-z0-9._ -]{1,40}", re.ASCII)


class FileError(Exception):
    """An operation failed; the message says why. The tree is as it was."""


class FileTree:
    """Files by path, and the folders they are in.

    Paths are written "/folder/name"; a missing first slash, "." and ".." are understood, and ".." above the root stays
    there. A folder exists once it has been made, whether or not anything is in it.

    Args:
        files: Contents by path; the folders they need are made.
    """

    def __init__(self, files: Mapping[str, str]) -> None:
        self.files: dict[str, str] = {}
        self.folders: set[str] = {"/"}
        for path, content in files.items():
            self.make_folder(parent(path))
            self.files[path] = content

    def resolve(self, path: str) -> str:
        """The path in its one normal form.

        Raises:
            FileError: A name in it is too long, or has characters other than letters, digits, and ``. _ -``.
        """
        parts: list[str] = []
        for part in path[:1000].split("/"):
            if part == "..":
                parts = parts[:-1]
            elif part not in ("", "."):
                if _NAME.fullmatch(part) is None:
                    raise FileError("not a valid path")
                parts.append(part)
        if len(parts) > 8:
            raise FileError("the path is too deep")
        return "/" + "/".join(parts)

    def listing(self, path: str) -> list[str]:
        """Names in a folder in alphabetical order, folders with a slash behind them.

        Raises:
            FileError: There is no such folder.
        """
        folder = self.resolve(path)
        if folder not in self.folders:
            raise FileError(f"{folder}: no such folder")
        folders = [f"{name(other)}/" for other in self.folders if other != "/" and parent(other) == folder]
        return sorted([*folders, *(name(file) for file in self.files if parent(file) == folder)])

    def read(self, path: str) -> str:
        """The contents of a file.

        Raises:
            FileError: There is no such file.
        """
        file = self.resolve(path)
        if file not in self.files:
            raise FileError(f"{file}: {'is a folder' if file in self.folders else 'no such file'}")
        return self.files[file]

    def write(self, path: str, content: str) -> str:
        """Makes a file, or replaces its contents; returns its path.

        Raises:
            FileError: Its folder does not exist, it is a folder, or it is too large.
        """
        file = self.resolve(path)
        if len(content) > MAX_CONTENT:
            raise FileError(f"a file has at most {MAX_CONTENT} characters")
        if file in self.folders:
            raise FileError(f"{file}: is a folder")
        self._need_folder(parent(file))
        if file not in self.files and len(self.files) >= MAX_FILES:
            raise FileError(f"there may be at most {MAX_FILES} files")
        self.files[file] = content
        return file

    def make_folder(self, path: str) -> str:
        """Makes a folder and those above it; returns its path. One that exists already is fine.

        Raises:
            FileError: A file is in the way, or there are too many folders.
        """
        folder = self.resolve(path)
        above = [folder]
        while above[-1] != "/":
            above.append(parent(above[-1]))
        if any(other in self.files for other in above):
            raise FileError(f"{folder}: a file has that name")
        if len(self.folders) > MAX_FILES:
            raise FileError(f"there may be at most {MAX_FILES} folders")
        self.folders |= set(above)
        return folder

    def copy(self, source: str, target: str) -> str:
        """Copies a file, into the target where that is a folder; returns the path of the copy.

        Raises:
            FileError: There is no such file, or the copy cannot be written.
        """
        content = self.read(source)
        return self.write(self._into(self.resolve(source), target), content)

    def move(self, source: str, target: str) -> str:
        """Moves or renames a file or folder, into the target where that is a folder; returns its new path.

        Raises:
            FileError: There is no such thing, the new folder does not exist, or a folder would be moved into itself.
        """
        old = self.resolve(source)
        new = self._into(old, target)
        if old in self.folders:
            return self._move_folder(old, new)
        content = self.read(source)
        if new != old:
            self.write(new, content)
            del self.files[old]
        return new

    def remove(self, path: str, *, recursive: bool = False) -> str:
        """Deletes a file or a folder; returns its path.

        Raises:
            FileError: There is no such thing, it is the root, or a folder that is not empty without `recursive`.
        """
        old = self.resolve(path)
        if old == "/":
            raise FileError("/: cannot be removed")
        if old in self.folders:
            if self.listing(old) and not recursive:
                raise FileError(f"{old}: is not empty")
            self.folders = {folder for folder in self.folders if not _within(folder, old)}
            self.files = {file: content for file, content in self.files.items() if not _within(file, old)}
            return old
        self.read(path)
        del self.files[old]
        return old

    def find(self, pattern: str) -> list[str]:
        """Paths of the files whose name matches a pattern with * and ?, in alphabetical order."""
        if len(pattern) > 40:
            raise FileError("the pattern is too long")
        return sorted(file for file in self.files if fnmatch.fnmatchcase(name(file), pattern))

    def grep(self, text: str) -> list[str]:
        """The lines that hold a text, as "path: line", in alphabetical order of the paths."""
        if not text:
            raise FileError("the text is empty")
        return [
            f"{file}: {line}" for file in sorted(self.files) for line in self.files[file].split("\n") if text in line
        ]

    def _into(self, source: str, target: str) -> str:
        path = self.resolve(target)
        return self.resolve(f"{path}/{name(source)}") if path in self.folders else path

    def _need_folder(self, folder: str) -> None:
        if folder not in self.folders:
            raise FileError(f"{folder}: no such folder")

    def _move_folder(self, old: str, new: str) -> str:
        if _within(new, old):
            raise FileError(f"{old}: cannot be moved into itself")
        if new in self.files or new in self.folders:
            raise FileError(f"{new}: exists already")
        self._need_folder(parent(new))
        self.folders = {new + folder[len(old) :] if _within(folder, old) else folder for folder in self.folders}
        self.files = {new + file[len(old) :] if _within(file, old) else file: text for file, text in self.files.items()}
        return new


def parent(path: str) -> str:
    """The folder of a path in normal form."""
    return path.rpartition("/")[0] or "/"


def name(path: str) -> str:
    """The last name of a path in normal form."""
    return path.rpartition("/")[2]


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")
