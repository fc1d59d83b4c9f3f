"""Routing of sessions to servers, and which servers are in service."""

from envgym.engines.sglang.client import SGLangClient
from envgym.engines.sglang.routing import ServerPool


def pool(count):
    return ServerPool([SGLangClient(f"http://127.0.0.1:{9000 + i}") for i in range(count)])


def test_sessions_go_to_the_least_loaded_server_and_stay():
    servers = pool(3)
    sessions = [servers.place(None) for _ in range(6)]
    assert [server.num_sessions for server in servers.servers] == [2, 2, 2]
    assert [servers.place(server) for server in sessions] == sessions
    servers.leave(sessions[1])
    assert servers.place(None) is sessions[1]
    with servers.running(servers.servers[0]):
        assert servers.place(None) is not servers.servers[0]
    assert servers.servers[0].num_running == 0 and servers.servers[0].num_requests == 1


def test_a_server_out_of_service_keeps_no_session_and_a_late_complaint_does_not_take_it_out_again():
    servers = pool(2)
    first, second = servers.servers
    assert servers.place(None) is first
    during = first.times_in_service
    servers.take_out(first, "dead", during=during)
    assert servers.place(first) is second
    assert (first.num_sessions, second.num_sessions) == (0, 1)
    servers.put_in(first)
    servers.take_out(first, "dead", during=during)
    assert first.problem is None
    servers.take_out(first, "dead", during=first.times_in_service)
    servers.take_out(second, "dead too", during=second.times_in_service)
    assert servers.place(second) is None and servers.problems() == "dead; dead too"
    assert servers.due() == [first, second] and servers.due() == []
    servers.probed(first)
    assert first.next_probe > second.next_probe


def test_a_server_in_service_is_missed_and_welcomed_and_one_that_waits_for_weights_is_not(caplog):
    pool = ServerPool([SGLangClient("http://a"), SGLangClient("http://b")], waiting="has no weights")
    assert pool.place(None) is None
    assert pool.problems() == "http://a has no weights; http://b has no weights"
    pool.take_out(pool.servers[1], "http://b is gone")
    pool.put_in(pool.servers[0])
    assert pool.place(None) is pool.servers[0]
    assert caplog.text == ""
    pool.take_out(pool.servers[0], "http://a is gone")
    pool.put_in(pool.servers[0])
    assert "http://a is gone" in caplog.text and "http://a is back in service" in caplog.text
    caplog.clear()
    always = ServerPool([SGLangClient("http://a")])  # one in service from the start
    always.take_out(always.servers[0], "http://a is gone")
    always.put_in(always.servers[0])
    assert "http://a is gone" in caplog.text and "http://a is back in service" in caplog.text
