"""The run key: what it seals opens again only for the same member and conditions."""

from __future__ import annotations

import pytest
from authority import Authority
from hypothesis import given
from hypothesis import strategies as st

from swarm.net.run_key import KEY_BYTES, SEALED_MORE, RunKey, SealError, place_of

RUN = "ab" * 32
KEY = Authority().run_key(RUN)


def test_it_is_the_same_after_a_restart_and_another_for_each_run_and_organiser() -> None:
    assert Authority().run_key(RUN) == KEY
    assert len({KEY.secret, Authority().run_key("cd" * 32).secret, Authority(2).run_key(RUN).secret}) == 3
    with pytest.raises(ValueError, match="the run key has 31 bytes"):
        RunKey(bytes(KEY_BYTES - 1))
    assert KEY.secret.hex() not in repr(KEY) and str(KEY.secret) not in repr(KEY), "a log does not show it"


def test_what_is_sealed_opens_for_the_same_member_conditions_and_key_alone() -> None:
    sealed = KEY.seal("me", b"until 5", b"words")
    assert KEY.open("me", b"until 5", sealed) == b"words"
    assert len(sealed) == len(b"words") + SEALED_MORE
    assert KEY.seal("me", b"until 5", b"words") != sealed, "nobody sees that it is the same"
    for key, peer, bound, raw in (
        (KEY, "you", b"until 5", sealed),
        (KEY, "me", b"until 6", sealed),
        (RunKey(bytes(KEY_BYTES)), "me", b"until 5", sealed),
        (KEY, "me", b"until 5", sealed[:-1]),
        (KEY, "me", b"until 5", b""),
    ):
        with pytest.raises(SealError):
            key.open(peer, bound, raw)


def test_a_token_admits_the_peer_that_it_is_for() -> None:
    assert KEY.admits("me", KEY.token("me"))
    assert not KEY.admits("you", KEY.token("me"))
    assert not KEY.admits("me", b"")
    for seen in (KEY.place("me"), KEY.blind("me")):
        assert not KEY.admits("me", seen), "the place of a record, which others see, is no token"


def test_a_place_is_that_of_one_peer() -> None:
    assert KEY.place("me") == place_of(KEY.blind("me"), "me") != place_of(KEY.blind("me"), "you")


@given(st.binary(max_size=200))
def test_random_bytes_open_for_nobody(raw: bytes) -> None:
    with pytest.raises(SealError):
        KEY.open("me", b"", raw)
