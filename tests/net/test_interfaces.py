"""Which of a machine's addresses others are told, on machines of all kinds."""

from __future__ import annotations

import ipaddress

import pytest

from swarm.net.interfaces import Interface, best_first

LO = ("lo", ["127.0.0.1", "::1"])
DOCKER = ("docker0", ["172.17.0.1", "fe80::42"])


def ranked(interfaces: list[tuple[str, list[str]]], default: list[str] = []) -> list[str]:  # noqa: B006
    bridges = ("docker", "br-", "virbr", "cni")
    made = [
        Interface(name, tuple(map(ipaddress.ip_address, addresses)), name.startswith(bridges))
        for name, addresses in interfaces
    ]
    return list(map(str, best_first(made, map(ipaddress.ip_address, default))))


@pytest.mark.parametrize(
    ("interfaces", "default", "told"),
    [
        pytest.param([LO], [], ["127.0.0.1", "::1"], id="one machine, tried alone"),
        pytest.param([LO, ("eth0", ["192.168.1.5"]), DOCKER], ["192.168.1.5"], ["192.168.1.5"], id="docker beside it"),
        pytest.param([LO, ("wlan0", ["192.168.1.5"]), ("wg0", ["10.8.0.2"])], ["192.168.1.5"],
                     ["192.168.1.5", "10.8.0.2"], id="a VPN beside the router"),
        pytest.param([LO, ("tailscale0", ["100.101.1.1", "fd7a::1"]), ("eth0", ["10.0.0.4"])], ["10.0.0.4"],
                     ["10.0.0.4", "100.101.1.1", "fd7a::1"], id="a VPN of addresses that carriers share"),
        pytest.param([LO, ("wg0", ["10.8.0.2"]), ("eth0", ["192.168.1.5"])], ["10.8.0.2"],
                     ["10.8.0.2", "192.168.1.5"], id="everything through the VPN"),
        pytest.param([LO, ("enp1s0", ["10.1.1.1"]), ("enp2s0", ["10.2.2.2"])], [], ["10.1.1.1", "10.2.2.2"],
                     id="no default route, two cables"),
        pytest.param([LO, ("eth0", ["2a00::5", "fe80::1"])], ["2a00::5"], ["2a00::5"], id="IPv6 alone"),
        pytest.param([LO, ("eth0", ["10.0.0.4"]), ("eth1", ["8.8.4.4", "10.9.9.9"])], ["10.0.0.4"],
                     ["10.0.0.4", "8.8.4.4", "10.9.9.9"], id="a public card beside the inner one"),
        pytest.param([LO, DOCKER], [], ["172.17.0.1"], id="nothing but containers"),
        pytest.param([LO, ("eth0", ["169.254.3.4", "fe80::1"]), DOCKER], [], ["169.254.3.4", "172.17.0.1"],
                     id="a cable and no addresses"),
        pytest.param([LO, ("docker0", ["172.17.0.1"]), ("br-0123456789ab", ["172.18.0.1"])], ["172.18.0.1"],
                     ["172.18.0.1"], id="the way out is a bridge"),
        pytest.param([LO], [], ["127.0.0.1", "::1"], id="offline"),
    ],
)  # fmt: skip
def test_best_first(interfaces: list[tuple[str, list[str]]], default: list[str], told: list[str]) -> None:
    assert ranked(interfaces, default) == told
