"""Puts a folder that was written beside another in its place."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def replace_folder(partial: Path, final: Path) -> None:
    """Gives a written folder its name. What had the name before is gone only once the new one has it.

    Raises:
        OSError: It cannot be renamed.
    """
    replaced = final.with_name(f".{final.name}.replaced")
    shutil.rmtree(replaced, ignore_errors=True)
    if final.exists():
        os.replace(final, replaced)
    os.replace(partial, final)
    shutil.rmtree(replaced, ignore_errors=True)
