"""The network interface behind an address."""

import socket

import psutil

from reroll.workers.host import HOST, LOOPBACK, interface_of, own_host


def test_every_address_of_this_machine_has_its_interface():
    for name, addresses in psutil.net_if_addrs().items():
        for found in addresses:
            if found.family == socket.AF_INET:
                assert interface_of(found.address) == name


def test_without_a_placements_word_it_is_loopback(monkeypatch):
    monkeypatch.delenv(HOST, raising=False)
    assert interface_of(own_host()) == interface_of("localhost") == interface_of(LOOPBACK)


def test_another_machines_address_has_no_interface_here():
    assert interface_of("192.0.2.1") is None
