"""A new plug-in package with an environment of one's own: `envgym new`.

What is written is complete: an environment with process rewards, a solver and a demonstrator, tests, a README and a
`pyproject.toml` whose entry point envgym finds once the package is installed. It passes `check_env` as it is.
"""

from __future__ import annotations

import importlib.util
import keyword
import re
import sys
from importlib import resources
from pathlib import Path
from string import Template

_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")

_TEMPLATES = resources.files("envgym.cli") / "template"
_FILES = {
    "pyproject.toml": "pyproject.txt",
    "README.md": "readme.txt",
    ".gitignore": "gitignore.txt",
    "$package/__init__.py": "init.txt",
    "$package/environment.py": "environment.txt",
    "$package/players.py": "players.txt",
    "tests/test_$package.py": "test.txt",
}
"""What is written, and the template of each."""


def new_package(name: str, directory: Path | str = ".") -> list[Path]:
    """Writes a plug-in package with one environment, `name/Name-v0`, into the folder `directory / name`.

    Args:
        name: Name of the package: lower-case words joined by underscores, for example `my_env`.
        directory: Where the folder is made; made itself if need be.

    Returns:
        The files that were written.

    Raises:
        ValueError: The name cannot be used, or there is something at that path already. Nothing is written then.
    """
    _check_name(name)
    folder = Path(directory) / name
    if folder.exists() or folder.is_symlink():
        raise ValueError(f"'{folder}' exists already and is left as it is; choose another name or another --dir")
    for parent in folder.parents:
        if parent.exists():
            if not parent.is_dir():
                raise ValueError(f"'{parent}' is not a folder; choose another --dir")
            break
    cls = "".join(word.capitalize() for word in name.split("_"))
    values = {
        "package": name,
        "project": name.replace("_", "-"),
        "title": name.replace("_", " ").capitalize(),
        "cls": cls,
        "env_id": f"{name}/{cls}-v0",
    }
    written = []
    for path, template in _FILES.items():
        file = folder / Template(path).substitute(values)
        file.parent.mkdir(parents=True, exist_ok=True)
        text = (_TEMPLATES / template).read_text(encoding="utf-8")
        file.write_text(Template(text).substitute(values), encoding="utf-8")
        written.append(file)
    return written


def _check_name(name: str) -> None:
    """Refuses a name that cannot be that of a package, or is another's."""
    if not _NAME.fullmatch(name):
        nearest = re.sub(r"[^a-z0-9]+", "_", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()).strip("_")
        hint = f" Did you mean '{nearest}'?" if _NAME.fullmatch(nearest) else ""
        raise ValueError(
            f"'{name}' cannot name a package: use lower-case letters, digits and single underscores, and begin with a "
            f"letter, as in 'my_env'.{hint}"
        )
    if keyword.iskeyword(name) or keyword.issoftkeyword(name):
        raise ValueError(f"'{name}' is a word of the Python language; choose another name")
    if name in sys.stdlib_module_names or name in ("envgym", "test", "tests", "environments", "agents"):
        raise ValueError(f"'{name}' would hide a package that is needed; choose another name")
    if importlib.util.find_spec(name) is not None:
        raise ValueError(f"a package '{name}' is installed already; choose another name")
