"""What servers call their weights, and whose they are."""

import pytest

from envgym.engines.sglang.client import SGLangClient
from envgym.engines.sglang.routing import ServerPool
from envgym.engines.sglang.weight_version import UNKNOWN_VERSION, parse_version, version_name


@pytest.mark.parametrize("lineage", ["", "a1b2"])
def test_a_name_stands_for_its_version(lineage):
    assert parse_version(version_name(12, lineage), lineage) == 12


@pytest.mark.parametrize("name", ["default", "0", "12", "other:12", "incomplete", "a1b2", "a1b2:", "", None])
def test_weights_of_another_lineage_have_no_version(name):
    assert parse_version(name, "a1b2") == UNKNOWN_VERSION


@pytest.mark.parametrize(("name", "version"), [("default", 0), (None, 0), ("", 0), ("7", 7), ("a1b2:7", 7)])
def test_where_any_weights_may_sample_every_name_has_a_version(name, version):
    assert parse_version(name) == version


def test_a_server_that_waits_for_weights_is_not_in_service_and_nobody_is_warned(caplog):
    pool = ServerPool([SGLangClient("http://a"), SGLangClient("http://b")], waiting="has no weights")
    assert pool.settle(None) is None
    assert pool.problems() == "http://a has no weights; http://b has no weights"
    pool.take_out(pool.servers[1], "http://b is gone")
    pool.put_in(pool.servers[0])
    assert pool.settle(None) is pool.servers[0]
    assert caplog.text == ""
    pool.take_out(pool.servers[0], "http://a is gone")
    pool.put_in(pool.servers[0])
    assert "http://a is gone" in caplog.text and "http://a is back in service" in caplog.text


def test_a_server_in_service_from_the_start_is_missed_and_welcomed(caplog):
    pool = ServerPool([SGLangClient("http://a")])
    pool.take_out(pool.servers[0], "http://a is gone")
    pool.put_in(pool.servers[0])
    assert "http://a is gone" in caplog.text and "http://a is back in service" in caplog.text
