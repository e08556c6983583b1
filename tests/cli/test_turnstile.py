"""The turnstile of an open run: so many of a block, so many in all, and when the next one may come."""

from __future__ import annotations

import pytest

from peers.coordinator.turnstile import (
    IN_ALL_AT_ONCE,
    IN_ALL_EVERY_S,
    MOST_BLOCKS,
    OF_A_BLOCK_AT_ONCE,
    OF_A_BLOCK_EVERY_S,
    Turnstile,
)
from swarm.net.addresses import block_of, encode


def test_a_block_and_all_blocks_have_their_limits() -> None:
    turnstile = Turnstile()
    assert [turnstile.wait_s("a", 100.0) for _ in range(OF_A_BLOCK_AT_ONCE)] == [0.0] * OF_A_BLOCK_AT_ONCE
    assert turnstile.wait_s("a", 100.0) == OF_A_BLOCK_EVERY_S
    assert turnstile.wait_s("a", 160.0) == pytest.approx(OF_A_BLOCK_EVERY_S - 60), "asking in vain costs nothing"
    assert turnstile.wait_s("a", 100.0 + OF_A_BLOCK_EVERY_S) == 0.0
    assert turnstile.wait_s("a", 100.0 + OF_A_BLOCK_EVERY_S) == OF_A_BLOCK_EVERY_S


def test_a_turn_that_is_given_back_may_be_taken_again() -> None:
    turnstile = Turnstile()
    for number in range(IN_ALL_AT_ONCE):
        assert turnstile.wait_s(str(number), 100.0) == 0.0
    assert turnstile.wait_s("z", 100.0) == IN_ALL_EVERY_S
    turnstile.give_back("0")
    assert (turnstile.wait_s("z", 100.0), turnstile.wait_s("z", 100.0)) == (0.0, IN_ALL_EVERY_S)
    full = Turnstile()
    full.wait_s("a", 100.0)
    for _ in range(3):
        full.give_back("a")
    assert [full.wait_s("a", 100.0) for _ in range(OF_A_BLOCK_AT_ONCE)] == [0.0] * OF_A_BLOCK_AT_ONCE
    assert full.wait_s("a", 100.0) == OF_A_BLOCK_EVERY_S, "never more than the limit"


def test_many_blocks_together_are_limited_too_and_are_forgotten_in_the_end() -> None:
    turnstile = Turnstile()
    waits = [turnstile.wait_s(str(n), 0.0) for n in range(IN_ALL_AT_ONCE + 5)]
    assert waits == [0.0] * IN_ALL_AT_ONCE + [IN_ALL_EVERY_S] * 5
    came = sum(turnstile.wait_s(str(n), IN_ALL_EVERY_S * 20) == 0.0 for n in range(100, 100 + 2 * MOST_BLOCKS))
    assert came == 20
    assert len(turnstile._blocks) == MOST_BLOCKS


@pytest.mark.parametrize(
    ("address", "block"),
    [
        ("/ip4/203.0.113.77/tcp/4001", "203.0.113.0/24"),
        ("/ip6/2001:db8:7:9::1/tcp/4001", "2001:db8:7::/48"),
        ("/ip6/::ffff:203.0.113.9/tcp/1", "203.0.113.0/24"),
        (
            "/ip4/198.51.100.1/tcp/1/p2p/12D3KooWQcTnBX7D7Qj8NaDWW6NuJS2cZeTfNFNQjfZwBcQ3ZcDu/p2p-circuit",
            "198.51.100.0/24",
        ),
        ("/dns4/example.org/tcp/1", ""),
    ],
)
def test_blocks(address: str, block: str) -> None:
    assert block_of(encode(address)) == block
    assert block_of(encode(address)[:3]) == "", "cut off"
