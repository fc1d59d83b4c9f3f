"""Threads beside event loops: blocking functions for coroutines, and coroutines for ordinary functions.

Python cannot interrupt a thread. All threads here are daemons, so one that hangs keeps no interpreter from exiting.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, Generic, TypeVar

from envgym.errors import StepTimeoutError

T = TypeVar("T")

_LOOK_S = 0.5
"""How often the main thread wakes up to see whether it was interrupted. A signal that comes just before a thread begins
to wait does not wake it, and neither does a future or an event loop without timers."""

_CANCEL_S = 5.0
"""Seconds that an interrupted coroutine gets to clean up where it runs in a thread of its own."""

Outcome = tuple[Any, BaseException | None]
"""What a function returned, and what it raised."""


class WorkerThreads:
    """Blocking functions in threads, at most so many at a time for one event loop.

    A thread whose function takes too long, or whose caller is cancelled, is abandoned: it no longer counts, and ends
    once its function returns, if ever.

    Args:
        num_threads: Most functions that run at a time, those abandoned not counted.
        name: What the names of the threads begin with.
    """

    def __init__(self, num_threads: int, name: str) -> None:
        self._num_threads = num_threads
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._places = asyncio.Semaphore(num_threads)
        self._threads: list[threading.Thread] = []  # those that `close` waits for

    async def call(
        self,
        function: Callable[..., Any],
        *args: Any,
        limit_s: float | None = None,
        if_abandoned: Callable[[Any], Any] | None = None,
    ) -> Any:
        """Awaits a function.

        Args:
            function: What to run.
            args: Its arguments.
            limit_s: Seconds it may take from when a thread takes it up; None is no limit.
            if_abandoned: Called in a thread with what the function returned (None where it raised, or never ran) where
                nobody waits for that any more: here belongs what must not be done while the function runs.

        Raises:
            StepTimeoutError: The function takes longer than the limit.
            Exception: What the function raised. What an event loop would take for its own (StopIteration, a
                cancellation, an exit), or the caller for this method's, comes as a RuntimeError.
        """
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # a semaphore belongs to one; the threads of the last one are abandoned
            self._loop, self._places = loop, asyncio.Semaphore(self._num_threads)
        reply: asyncio.Future[Outcome] = loop.create_future()
        lock = threading.Lock()
        abandoned = False
        outcome: Outcome | None = None
        thread: threading.Thread | None = None

        def settle() -> None:
            if not reply.done():
                assert outcome is not None
                reply.set_result(outcome)

        def work() -> None:
            nonlocal outcome
            result = _outcome(function, *args)
            with lock:
                outcome = result
                deliver = not abandoned
            if not deliver:
                clean_up()
            else:
                with contextlib.suppress(RuntimeError):  # the loop has been closed
                    loop.call_soon_threadsafe(settle)

        def clean_up() -> None:
            if if_abandoned is not None:
                with contextlib.suppress(Exception):  # nobody is there to hear of it
                    if_abandoned(None if outcome is None else outcome[0])

        try:
            async with self._places:
                thread = self._start(work)
                async with asyncio.timeout(limit_s):
                    result, error = await reply
        except (TimeoutError, asyncio.CancelledError) as interruption:
            with lock:
                abandoned = True
                running = thread is not None and outcome is None
            if not running:  # it never ran, or has just returned
                self._start(clean_up)
            if isinstance(interruption, asyncio.CancelledError):
                raise
            if running and thread in self._threads:
                self._threads.remove(thread)
            name = str(getattr(function, "__name__", "the call")).strip("_")
            raise StepTimeoutError(f"{name} took longer than {limit_s:g} s") from None
        if error is not None:
            raise error
        return result

    def close(self, *, grace_s: float) -> None:
        """Waits for the threads to end, also for those whose callers were cancelled, at most so many seconds."""
        deadline = time.monotonic() + grace_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _start(self, target: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=target, name=self._name, daemon=True)
        self._threads = [*(other for other in self._threads if other.is_alive()), thread]
        thread.start()
        return thread


def _outcome(function: Callable[..., Any], *args: Any) -> Outcome:
    """What a function returned or raised, in a form that crosses from a thread to an event loop unchanged."""
    try:
        return function(*args), None
    except (
        *(StopIteration, CancelledError, asyncio.CancelledError, SystemExit, GeneratorExit),
        StepTimeoutError,  # which means here that the function is not back
    ) as error:
        stand_in = RuntimeError(f"{type(error).__name__}: {error}")
        stand_in.__cause__ = error
        return None, stand_in.with_traceback(error.__traceback__)
    except BaseException as error:
        return None, error


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
