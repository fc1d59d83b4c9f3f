"""Runs coroutines from ordinary functions."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

T = TypeVar("T")

_LOOK_S = 0.5
"""How often the main thread wakes up to see whether it was interrupted. A signal that comes just before a thread begins
to wait does not wake it, and neither does a future or an event loop without timers."""

_CANCEL_S = 5.0
"""Seconds that an interrupted coroutine gets to clean up where it runs in a thread of its own."""


class LoopThread(Generic[T]):
    """A coroutine that runs in a daemon thread, with an event loop of its own.

    Args:
        coroutine: Started at once.
        name: Of the thread.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, T], *, name: str) -> None:
        self._result: Future[T] = Future()
        self._cancelled = False
        self._running: tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]] | None = None
        self._thread = threading.Thread(target=self._work, args=(coroutine,), name=name, daemon=True)
        self._thread.start()

    def result(self) -> T:
        """Waits for the coroutine; what it returned, or what it raised."""
        while not self._result.done():
            concurrent.futures.wait([self._result], timeout=_LOOK_S)
        return self._result.result()

    def cancel(self) -> None:
        """Cancels the coroutine, unless it is over."""
        self._cancelled = True
        if self._running is not None and not self._result.done():
            loop, task = self._running
            with contextlib.suppress(RuntimeError):  # the loop has just ended by itself
                loop.call_soon_threadsafe(task.cancel)

    def join(self, timeout_s: float | None = None) -> None:
        """Waits for the thread, at most so long."""
        self._thread.join(timeout_s)

    def _work(self, coroutine: Coroutine[Any, Any, T]) -> None:
        async def main() -> T:
            task = asyncio.current_task()
            assert task is not None
            self._running = asyncio.get_running_loop(), task
            if self._cancelled:  # before it was known whom to tell
                coroutine.close()
                raise asyncio.CancelledError
            return await coroutine

        try:
            self._result.set_result(asyncio.run(main()))
        except BaseException as error:
            self._result.set_exception(error)


async def _watchful(coroutine: Coroutine[Any, Any, T]) -> T:
    """Awaits a coroutine in an event loop that never waits for long."""
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle

    def look() -> None:
        nonlocal timer
        timer = loop.call_later(_LOOK_S, look)

    look()
    try:
        return await coroutine
    finally:
        timer.cancel()


def run_to_end(coroutine: Coroutine[Any, Any, T]) -> T:
    """What a coroutine returns. Where a loop is running already (a notebook), it runs in a thread of its own."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(_watchful(coroutine))
    thread = LoopThread(coroutine, name="envgym-loop")
    try:
        return thread.result()
    except BaseException:
        thread.cancel()  # an interrupt reaches this thread, not that one
        raise
    finally:
        thread.join(_CANCEL_S)
