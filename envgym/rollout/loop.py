"""Runs a coroutine from an ordinary function."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")

_CANCEL_S = 5.0
"""Seconds that an interrupted coroutine gets to clean up where it runs in a thread of its own."""


def run_to_end(coroutine: Coroutine[Any, Any, T]) -> T:
    """What a coroutine returns. Where a loop is running already (a notebook), it runs in a thread of its own."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    result: Future[T] = Future()
    running: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = []

    async def main() -> T:
        task = asyncio.current_task()
        assert task is not None
        running.append((asyncio.get_running_loop(), task))
        return await coroutine

    def work() -> None:
        try:
            result.set_result(asyncio.run(main()))
        except BaseException as error:
            result.set_exception(error)

    thread = threading.Thread(target=work, name="envgym-loop", daemon=True)
    thread.start()
    try:
        return result.result()
    except BaseException:
        if not result.done() and running:  # an interrupt reaches this thread, not that one
            loop, task = running[0]
            loop.call_soon_threadsafe(task.cancel)
        raise
    finally:
        thread.join(_CANCEL_S)
