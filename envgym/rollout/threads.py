"""Daemon threads that run blocking functions for coroutines, and can be left behind where a function hangs."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError
from queue import SimpleQueue
from typing import Any

from envgym.errors import StepTimeoutError

Late = Callable[[Any], Any]


class WorkerThreads:
    """At most so many threads at a time, started as they are needed.

    Python cannot interrupt a thread. One whose function takes too long, or whose caller is cancelled, is left behind:
    it no longer counts, another may take its place, and it ends once its function returns, if ever. All threads are
    daemons, so none keeps the interpreter from exiting.

    Args:
        num_threads: Most threads that run at a time, those left behind not counted.
        name: What the names of the threads begin with.
    """

    def __init__(self, num_threads: int, name: str) -> None:
        self._num_threads = num_threads
        self._name = name
        self._lock = threading.Lock()
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._num_jobs = 0  # waiting or running, those of threads left behind not counted
        self._num_started = 0
        self._threads: set[threading.Thread] = set()
        self._interrupted: set[threading.Thread] = set()
        self._closed = False

    async def call(
        self, function: Callable[..., Any], *args: Any, limit_s: float | None = None, late: Late | None = None
    ) -> Any:
        """Awaits a function.

        Args:
            function: What to run.
            args: Its arguments.
            limit_s: Seconds it may take from when a thread takes it up; None is no limit.
            late: Called in a thread with what the function returned (None where it raised, or never ran) where nobody
                waits for that any more: here belongs what must not be done while the function runs.

        Raises:
            StepTimeoutError: The function takes longer than the limit.
            Exception: What the function raised. What an event loop would take for its own (StopIteration, a
                cancellation, an exit), or the caller for this method's, comes as a RuntimeError.
        """
        loop = asyncio.get_running_loop()
        reply: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()

        def settle(outcome: tuple[Any, BaseException | None]) -> None:
            if not reply.done():
                reply.set_result(outcome)

        def deliver(outcome: tuple[Any, BaseException | None]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has been closed
                loop.call_soon_threadsafe(settle, outcome)

        job = _Job(function, args, deliver, late)

        timer: asyncio.TimerHandle | None = None

        def expire() -> None:
            nonlocal timer
            assert limit_s is not None
            left = limit_s if job.started is None else job.started + limit_s - time.monotonic()
            if left > 0:  # it had to wait for a thread
                timer = loop.call_later(left, expire)
            elif self._leave(job, wait_for_it=False) and not reply.done():
                reply.set_exception(StepTimeoutError(f"{_named(function)} took longer than {limit_s:g} s"))

        self._submit(job)
        if limit_s is not None:
            timer = loop.call_later(limit_s, expire)
        try:
            result, error = await reply
        except asyncio.CancelledError:
            if not self._leave(job, wait_for_it=True) and late is not None:  # it has just returned
                self._submit(_Job(late, (job.result,), lambda outcome: None, None))
            raise
        finally:
            if timer is not None:
                timer.cancel()
        if error is not None:
            raise error
        return result

    def run_all(self, functions: Iterable[Callable[[], Any]], *, limit_s: float) -> None:
        """Runs functions and waits for them; leaves behind those that are not back in time. Errors are dropped."""
        jobs = []
        for function in functions:
            back = threading.Event()
            jobs.append((back, _Job(function, (), lambda _, back=back: back.set(), None)))  # type: ignore[misc]
            self._submit(jobs[-1][1])
        deadline = time.monotonic() + limit_s
        for back, job in jobs:
            if not back.wait(max(0.0, deadline - time.monotonic())):
                self._leave(job, wait_for_it=False)

    def close(self, *, grace_s: float) -> None:
        """Ends the threads.

        Args:
            grace_s: Seconds that functions get whose callers were cancelled; those that take longer are left behind.
        """
        with self._lock:
            self._closed = True
            threads = [*self._threads, *self._interrupted]
        for _ in threads:
            self._jobs.put(None)
        deadline = time.monotonic() + grace_s
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _submit(self, job: _Job) -> None:
        with self._lock:
            assert not self._closed, "a call after close"
            self._num_jobs += 1
            self._start_thread_if_needed()
        self._jobs.put(job)

    def _start_thread_if_needed(self) -> None:
        if self._num_jobs > len(self._threads) < self._num_threads:
            name = f"{self._name}-{self._num_started}"
            self._num_started += 1
            thread = threading.Thread(target=self._work, name=name, daemon=True)
            self._threads.add(thread)
            thread.start()

    def _leave(self, job: _Job, *, wait_for_it: bool) -> bool:
        """Stops waiting for a job. False where it is finished already."""
        with self._lock:
            if job.finished or job.left:
                return False
            job.left = True
            if job.thread is not None:  # its place is free for another
                self._threads.discard(job.thread)
                self._num_jobs -= 1
                if wait_for_it:
                    self._interrupted.add(job.thread)
                if not self._closed:
                    self._start_thread_if_needed()
            return True

    def _work(self) -> None:
        me = threading.current_thread()
        while (job := self._jobs.get()) is not None:
            with self._lock:
                runs = not job.left
                if runs:
                    job.thread, job.started = me, time.monotonic()
            outcome = _outcome(job.function, *job.args) if runs else (None, None)
            with self._lock:
                job.finished, job.result = True, outcome[0]
                left = job.left
                if not (runs and left):
                    self._num_jobs -= 1
            if not left:
                job.deliver(outcome)
            elif job.late is not None:
                with contextlib.suppress(Exception):  # nobody is there to hear of it
                    job.late(outcome[0])
            if runs and left:  # another thread has this one's place
                with self._lock:
                    self._interrupted.discard(me)
                return
            del job, outcome  # a thread that waits holds nothing


class _Job:
    __slots__ = ("args", "deliver", "finished", "function", "late", "left", "result", "started", "thread")

    def __init__(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        deliver: Callable[[tuple[Any, BaseException | None]], None],
        late: Late | None,
    ) -> None:
        self.function, self.args, self.deliver, self.late = function, args, deliver, late
        self.left = False
        self.result: Any = None
        self.started: float | None = None
        self.thread: threading.Thread | None = None
        self.finished = False


def _outcome(function: Callable[..., Any], *args: Any) -> tuple[Any, BaseException | None]:
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


def _named(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", "the call")).strip("_")
