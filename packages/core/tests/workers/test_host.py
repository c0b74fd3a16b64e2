"""Where workers listen, and through which interface they reach the others."""

import os
import socket

import psutil
import pytest

from reroll.workers import host
from reroll.workers.host import HOST, choose_interface, interface_of, is_loopback, own_host

GLOO, NCCL = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"


@pytest.fixture
def nodes(monkeypatch):
    """A machine with two interfaces beside loopback."""
    addresses = {"lo": "127.0.0.1", "eth0": "10.0.0.1", "ib0": "10.1.0.1"}
    monkeypatch.setattr(socket, "if_nameindex", lambda: list(enumerate(addresses)))
    monkeypatch.setattr(host, "_address", addresses.get)
    for variable in (HOST, GLOO, NCCL):
        monkeypatch.delenv(variable, raising=False)
    return monkeypatch


def chosen():
    choose_interface()
    return os.environ.get(GLOO), os.environ.get(NCCL)


def test_without_a_word_from_the_placement_it_is_loopback(nodes):
    nodes.setenv(NCCL, "ib0")
    assert own_host() == "127.0.0.1"
    assert chosen() == ("lo", "lo")


def test_the_interface_is_that_of_the_address_unless_the_user_chose_another(nodes):
    nodes.setenv(HOST, "10.0.0.1")
    nodes.setenv(NCCL, "ib0")
    assert chosen() == ("eth0", "ib0")


def test_an_address_of_no_interface_leaves_the_choice_to_the_libraries(nodes):
    nodes.setenv(HOST, "192.168.7.7")
    assert chosen() == (None, None)


def test_the_system_knows_loopback():
    name = interface_of("127.0.0.1")
    assert name in [name for _, name in socket.if_nameindex()]
    assert host._address(name) in ("127.0.0.1", None)
    assert is_loopback("::1") and is_loopback("localhost") and not is_loopback("10.0.0.1") and not is_loopback("head")


def test_every_address_of_this_machine_has_its_interface():
    for name, addresses in psutil.net_if_addrs().items():
        for found in addresses:
            if found.family == socket.AF_INET:
                assert interface_of(found.address) == name
