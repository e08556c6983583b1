"""Links, packet by packet."""

from random import Random

import pytest

from peers.chaos.pipe import QUEUE_S, Pipe, Shape


def test_a_packet_takes_its_time_to_be_sent_and_to_arrive() -> None:
    pipe = Pipe(Shape(rate=1000, delay_s=0.5), Random(0))
    assert pipe.admit(10.0, 100) == pytest.approx(10.6)
    assert pipe.admit(10.0, 100) == pytest.approx(10.7), "the second waits for the first"
    assert pipe.admit(20.0, 100) == pytest.approx(20.6)


def test_a_full_queue_drops_and_empties_at_the_links_rate() -> None:
    pipe = Pipe(Shape(rate=1_000_000), Random(0))
    admitted = [pipe.admit(0.0, 1000) for _ in range(1000)]
    taken = [at for at in admitted if at is not None]
    assert len(taken) == pytest.approx(QUEUE_S * 1000, abs=2)
    assert pipe.admit(0.1, 1000) is not None


def test_what_is_jittered_is_late_and_in_order() -> None:
    pipe = Pipe(Shape(delay_s=0.1, jitter_s=0.05), Random(0))
    out = [pipe.admit(n / 1000, 100) for n in range(1000)]
    assert all(at is not None for at in out)
    late = [at - n / 1000 for n, at in enumerate(out) if at is not None]
    assert min(late) >= 0.1 and max(late) <= 0.15 and max(late) - min(late) > 0.01
    assert sorted(out) == out  # type: ignore[type-var]


def test_loss_has_its_share() -> None:
    pipe = Pipe(Shape(loss=0.05), Random(0))
    lost = sum(pipe.admit(float(n), 100) is None for n in range(20_000))
    assert 0.04 < lost / 20_000 < 0.06


def test_a_cut_link_carries_nothing_until_it_heals() -> None:
    pipe = Pipe(Shape(), Random(0))
    pipe.cut = True
    assert pipe.admit(0.0, 100) is None
    pipe.cut = False
    assert pipe.admit(0.0, 100) == 0.0


def test_bytes_of_a_stream_are_late_and_never_lost() -> None:
    pipe = Pipe(Shape(rate=1000, loss=0.9), Random(0), lossless=True)
    assert [pipe.admit(0.0, 1000) for _ in range(3)] == [1.0, 2.0, 3.0]
