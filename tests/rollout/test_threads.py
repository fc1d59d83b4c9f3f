"""Worker threads: what nobody waits for any more is cleaned up once, whether it runs, never ran or has returned."""

import asyncio
import threading

import pytest

from envgym.errors import StepTimeoutError
from envgym.rollout.threads import WorkerThreads, run_to_end


def test_a_call_that_is_given_up_is_cleaned_up_once_when_its_function_is_back():
    threads, go, cleaned = WorkerThreads(1, "w"), threading.Event(), []

    async def main():
        with pytest.raises(StepTimeoutError, match=r"wait took longer than 0\.05 s"):
            await threads.call(go.wait, 20, limit_s=0.05, if_abandoned=cleaned.append)
        running = asyncio.create_task(threads.call(go.wait, 20, if_abandoned=cleaned.append))
        waiting = asyncio.create_task(threads.call(go.wait, 20, if_abandoned=cleaned.append))
        await asyncio.sleep(0.05)
        waiting.cancel()
        await asyncio.wait([waiting])
        threads.close(grace_s=1)  # not the one that took too long, and not for ever the one that runs
        assert cleaned == [None]  # it never ran
        running.cancel()
        await asyncio.wait([running])
        return await threads.call(len, "abc")  # in the place of the one that was given up

    assert run_to_end(main()) == 3
    go.set()
    threads.close(grace_s=5)
    assert cleaned in ([None, True, True], [None, True])  # `close` does not wait for the one that took too long


def test_a_call_that_has_returned_when_it_is_given_up_is_cleaned_up_too():
    threads, returned, cleaned = WorkerThreads(1, "w"), threading.Event(), []

    async def main():
        call = asyncio.create_task(threads.call(lambda: returned.set() or "made", if_abandoned=cleaned.append))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert returned.wait(5)
        threads._threads[0].join(5)  # it has said so to the loop, which has not come to it yet
        call.cancel()
        await asyncio.wait([call])

    run_to_end(main())
    threads.close(grace_s=5)
    assert cleaned == ["made"]
