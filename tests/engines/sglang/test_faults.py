"""Servers that die, hang and come back: nothing that had finished is lost, and no episode is counted twice."""

import asyncio
import os
import signal
import threading
import time
from collections import Counter

import pytest
from processes import eventually, server_of
from served_play import collect, make_agent, play, recomputed, until_running

from envgym.engines import SGLangServer
from envgym.engines.embedded.tiny_model import byte_tokenizer
from envgym.engines.sglang.client import SGLangClient, is_healthy
from envgym.engines.sglang.policy import SGLangPolicy
from envgym.rendering import ChatMLRenderer
from envgym.types import SamplingParams


@pytest.fixture(scope="module")
def servers(requires_sglang, tiny_model_folder):
    """Two servers of which each runs eight requests at once. The tests below are told in order: they kill and restart
    them, which takes half a minute, and each leaves both alive but the last."""
    pair = [SGLangServer(tiny_model_folder, "cpu", max_running_requests=8) for _ in range(2)]
    try:
        for server in pair:
            server.launch()
        for server in pair:
            server.wait_until_healthy()
        yield pair
    finally:
        for server in pair:
            server.stop()


def send(server, number):
    """A signal to all processes of a server."""
    os.killpg(server_of(server.process.pid), number)


def after_episodes(count, action):
    """What calls `action` once so many episodes have finished, and the indices that finished."""
    finished, lock = Counter(), threading.Lock()

    def on_episode(index, trajectory):
        with lock:
            if trajectory.failure is not None:
                return
            finished[index] += 1
            due = sum(finished.values()) == count
        if due:
            action()

    return on_episode, finished


def assert_whole(collection, finished, count, folder):
    """Every episode is there, once, with the probabilities of one undisturbed stream of tokens."""
    assert [trajectory.seed for trajectory in collection.trajectories] == list(range(count))
    assert collection.failed == () and collection.missing == ()
    assert finished == dict.fromkeys(range(count), 1)
    ours, recorded = recomputed(folder, collection.trajectories, 1.0)
    assert (ours - recorded).abs().max() < 1e-4


def requests_to(policy, server):
    return policy.statistics().requests[server.url]


def test_episodes_of_a_killed_server_go_on_elsewhere_and_it_returns_with_current_weights(servers, tiny_model_folder):
    dying = servers[0]
    for server in servers:
        SGLangClient(server.url).name_weights("3")
    brought = []

    def bring(client, version):
        brought.append((client.url, version))
        client.name_weights(str(version))

    policy = SGLangPolicy([server.url for server in servers], on_return=bring)
    assert policy.version == 3
    on_episode, finished = after_episodes(6, lambda: send(dying, signal.SIGKILL))
    collection = collect(make_agent(policy, tiny_model_folder), 40, on_episode=on_episode)
    assert_whole(collection, finished, 40, tiny_model_folder)
    statistics = policy.statistics()
    assert statistics.retries > 0, "no turn was under way on the server when it was killed"
    assert list(statistics.out_of_service) == [dying.url] and brought == []
    assert statistics.turns == sum(len(trajectory.turns) for trajectory in collection.trajectories)

    port = dying.port
    dying.wait(10)
    dying.start()
    assert dying.port == port
    asked = requests_to(policy, dying)
    sampling = SamplingParams(max_new_tokens=2)
    assert eventually(lambda: asyncio.run(play(policy, 0, sampling)) and policy.statistics().out_of_service == {})

    async def several():
        return await asyncio.gather(*[play(policy, seed, sampling) for seed in range(4)])

    episodes = asyncio.run(several())
    assert brought == [(dying.url, 3)]
    assert requests_to(policy, dying) > asked
    assert {span.version for episode in episodes for _, c in episode for span in c.version_spans} == {3}
    for server in servers:
        SGLangClient(server.url).name_weights("default")


def test_episodes_of_a_server_that_hangs_go_on_elsewhere(servers, tiny_model_folder):
    hanging = servers[0]
    clients = [SGLangClient(server.url, generate_timeout_s=10) for server in servers]
    policy = SGLangPolicy(clients, probe_timeout_s=1)
    on_episode, finished = after_episodes(4, lambda: send(hanging, signal.SIGSTOP))
    try:
        collection = collect(make_agent(policy, tiny_model_folder), 24, concurrency=16, on_episode=on_episode)
        statistics = policy.statistics()
    finally:
        send(hanging, signal.SIGCONT)
    assert_whole(collection, finished, 24, tiny_model_folder)
    assert statistics.retries > 0, "no turn was under way on the server when it was stopped"
    assert list(statistics.out_of_service) == [hanging.url]
    sampling = SamplingParams(max_new_tokens=2)
    assert eventually(lambda: asyncio.run(play(policy, 0, sampling)) and policy.statistics().out_of_service == {})


def test_a_turn_in_the_queue_is_cancelled_and_no_other_loses_a_token(servers):
    policy = SGLangPolicy(servers[1].url)
    long = SamplingParams(max_new_tokens=500)

    async def main():
        sessions = [policy.open_session(seed=seed) for seed in range(12)]
        turns = [
            asyncio.ensure_future(policy.generate([65, 66, i], long, session=session))
            for i, session in enumerate(sessions)
        ]
        await until_running(servers[1].url, 8)  # the others wait
        started = time.monotonic()
        for turn in turns[10:]:
            turn.cancel()
        await asyncio.wait(turns[10:])
        waited = time.monotonic() - started
        return waited, await asyncio.gather(*turns, return_exceptions=True)

    waited, results = asyncio.run(main())
    assert waited < 3
    assert [isinstance(result, asyncio.CancelledError) for result in results] == [False] * 10 + [True] * 2
    assert [len(result.token_ids) for result in results[:10]] == [500] * 10
    assert policy.statistics().aborted == 2


def test_a_token_of_another_vocabulary_fails_its_episode_and_not_the_server(servers, tiny_model_folder):
    policy = SGLangPolicy([server.url for server in servers])
    agent = make_agent(policy, tiny_model_folder)
    agent.renderer = ChatMLRenderer(byte_tokenizer(words=("start",)))  # the first word of the first observation
    collection = collect(agent, 2, allow_missing=True)
    assert collection.trajectories == () and collection.missing == (0, 1)
    assert all("token id 263 of the prompt is outside" in trajectory.failure for trajectory in collection.failed)
    assert all(server.running and is_healthy(server.url) for server in servers)


def test_what_had_finished_is_kept_when_every_server_dies(servers, tiny_model_folder):
    policy = SGLangPolicy([server.url for server in servers], recovery_timeout_s=1, probe_timeout_s=1)

    def kill_all():
        for server in servers:
            send(server, signal.SIGKILL)

    on_episode, finished = after_episodes(5, kill_all)
    collection = collect(
        make_agent(policy, tiny_model_folder), 30, concurrency=10, on_episode=on_episode, allow_missing=True
    )
    assert 5 <= len(collection.trajectories) < 30
    assert len(collection.trajectories) + len(collection.missing) == 30
    assert sorted(finished) == sorted(set(range(30)) - set(collection.missing)) and set(finished.values()) == {1}
    assert all("ServerUnreachableError" in trajectory.failure for trajectory in collection.failed)
    ours, recorded = recomputed(tiny_model_folder, collection.trajectories, 1.0)
    assert (ours - recorded).abs().max() < 1e-4
