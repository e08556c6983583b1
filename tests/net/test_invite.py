"""Invites: round trip, and errors a person can act on."""

from __future__ import annotations

from dataclasses import replace

import pytest
from authority import Authority
from hypothesis import given
from hypothesis import strategies as st

from peers.options import is_invite
from swarm.net.invite import MAX_ADDRESSES, Invite, InviteError, parse
from swarm.net.passes import Ticket

PEER = "12D3KooWGLRVVPvcDMrJhekde9TpTBD1qiwdW8xK32UZrBTnp9fm"
ADDRESS = f"/ip4/203.0.113.5/tcp/4001/p2p/{PEER}"
RUN = "ab" * 32
PRINT = "0123-4567-89ab-cdef"
TICKET = Authority().ticket(RUN)
KEY = Authority().run_key(RUN)
INVITE = Invite((ADDRESS, f"/dns4/swarm.example/udp/4001/quic-v1/p2p/{PEER}"), PEER, RUN, PRINT, TICKET, KEY)


def test_a_token_round_trips_also_with_spaces_around() -> None:
    token = INVITE.encode()
    assert parse(f"  {token}\n") == INVITE
    assert token.isascii() and "=" not in token and " " not in token


@pytest.mark.parametrize(
    "around",
    ['"{}"', "'{}'", "“{}”", "«{}»", "`{}`", "<{}>", "{}.", "{},", "\ufeff{}\r\n", "swarm-peer join {}", "\n\t{}\n\n"],
)
def test_what_a_mail_or_chat_puts_around_a_token_does_no_harm(around: str) -> None:
    assert parse(around.format(INVITE.encode())) == INVITE
    if "swarm-peer" not in around:
        assert parse(around.format(ADDRESS)) == Invite((ADDRESS,), PEER)


@pytest.mark.parametrize("broken_by", ["\n", "\r\n", "\n> ", "\n>> ", "\n\n    ", " "])
def test_a_token_that_was_broken_into_lines_is_whole(broken_by: str) -> None:
    token = INVITE.encode()
    lines = [token[at : at + 60] for at in range(0, len(token), 60)]
    assert parse(broken_by.join(lines)) == INVITE
    with pytest.raises(InviteError, match="copy the whole invite again"):
        parse(broken_by.join(lines[:-1]))


def test_an_observers_invite_holds_no_run_key_and_all_others_do() -> None:
    observers = replace(INVITE, ticket=Authority().ticket(RUN, observes=True), key=None)
    assert parse(observers.encode()) == observers and observers.observes and not INVITE.observes
    with pytest.raises(InviteError, match="a pass and the run key"):
        replace(INVITE, key=None).encode()


def test_commands_know_an_invite_from_a_home() -> None:
    for text in (INVITE.encode(), "swarm1-old", "-", "@file"):
        assert is_invite(text), text
    for text in ("home", "/home/ann", "./swarm3-home", "swarm", "/ip4/1.2.3.4/tcp/1"):
        assert not is_invite(text), text


def test_a_bare_address_names_the_coordinator_only() -> None:
    assert parse(ADDRESS) == Invite((ADDRESS,), PEER)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("hello", "neither an invite"),
        ("", "neither an invite"),
        (INVITE.encode()[:-5], "cut off"),
        (INVITE.encode()[:20] + "A" + INVITE.encode()[21:], "cut off"),
        (INVITE.encode() + "!", "stray characters"),
        ("swarm3-", "damaged or cut off"),
        ("swarm3-" + "A" * 9000, "at most 8192"),
        ("swarm1-AAAA", "this invite is from an earlier release"),
        ("swarm2-AAAA", "this invite is from an earlier release (swarm2-…)"),
        ("/ip4/203.0.113.5/tcp/4001", "does not end in /p2p/"),
        (ADDRESS[:-4], "looks cut off or mistyped"),
        ("/ip4/203.0.113.500/tcp/4001/p2p/" + PEER, "203.0.113.500"),
        ("/ip4/203.0.113.5/tcp/70000/p2p/" + PEER, "'70000' is not a port"),
    ],
    ids=[
        "word",
        "empty",
        "cut",
        "altered",
        "stray",
        "head",
        "long",
        "earlier",
        "earlier-with-a-pass",
        "bare",
        "typo",
        "host",
        "port",
    ],  # tokens differ at each start
)
def test_what_is_no_invite_is_refused_by_name(text: str, reason: str) -> None:
    with pytest.raises(InviteError) as caught:
        parse(text)
    assert reason in str(caught.value)


def test_a_token_needs_run_and_organiser() -> None:
    with pytest.raises(InviteError, match="without the run hash"):
        Invite((ADDRESS,), PEER).encode()
    with pytest.raises(InviteError, match="a pass and the run key"):
        Invite((ADDRESS,), PEER, RUN, PRINT).encode()
    with pytest.raises(InviteError, match="and the run key"):
        Invite((ADDRESS,), PEER, RUN, PRINT, TICKET).encode()
    with pytest.raises(InviteError, match="fingerprint"):
        Invite((ADDRESS,), PEER, RUN, "short", TICKET, KEY).encode()
    with pytest.raises(InviteError, match="must have 1 to 16"):
        Invite((), PEER, RUN, PRINT, TICKET).encode()


def test_a_pass_belongs_to_the_run_of_the_invite_and_its_key_to_the_pass() -> None:
    with pytest.raises(InviteError, match="is for run"):
        Invite((ADDRESS,), PEER, "cd" * 32, PRINT, TICKET).encode()
    with pytest.raises(InviteError, match="does not match the pass"):
        Invite((ADDRESS,), PEER, RUN, PRINT, Ticket(TICKET.sealed, bytes(32))).encode()


def test_as_many_addresses_as_are_allowed_are_taken_and_one_more_is_not() -> None:
    whole = Invite((ADDRESS,) * MAX_ADDRESSES, PEER, RUN, PRINT, TICKET, KEY)
    assert parse(whole.encode()) == whole
    with pytest.raises(InviteError, match="has 17 addresses; it must have 1 to 16"):
        Invite((ADDRESS,) * (MAX_ADDRESSES + 1), PEER, RUN, PRINT, TICKET).encode()


@given(st.tuples(st.sampled_from(["", "swarm3-", "/", "/ip4/"]), st.text(max_size=100)).map("".join))
def test_any_text_gives_an_invite_or_an_invite_error(text: str) -> None:
    try:
        parse(text)
    except InviteError as error:
        assert str(error)
