"""Every message survives the wire; everything else is refused with WireError and nothing else."""

from __future__ import annotations

import math
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.codecs import codec
from swarm.compute import body
from swarm.net import message_mapping, wire, wire_bounds
from swarm.net.proto import messages_pb2 as pb
from swarm.net.stream import PREFIX_BYTES
from swarm.net.wire import Decoder, Encoder
from swarm.net.wire_bounds import WireError
from swarm.protocol import messages as m
from swarm.protocol.ids import (
    Actor,
    Attempt,
    Direction,
    FrameKey,
    Microbatch,
    PartKey,
    PassId,
    PassKind,
    StageIndex,
    StepNumber,
    SumKey,
    Term,
)
from swarm.protocol.stage_needs import ComputeKind

SENDER = Actor("12D3KooWGLRVVPvcDMrJhekde9TpTBD1qiwdW8xK32UZrBTnp9fm", 1_763_000_000_123)
RECEIVER = Actor("12D3KooWBejDA2pr3C1CaZbY6AGVyWVaUdAtwrA4nnfPQs38XNNd", 1_763_000_000_456)

actors = st.builds(Actor, st.text("abcXYZ123", min_size=1, max_size=20), st.integers(0, 2**63 - 1)) | st.sampled_from(
    [SENDER, RECEIVER]
)
large = st.integers(0, 2**63 - 1)
small = st.integers(0, 2**32 - 1)
finite = st.floats(allow_nan=False, allow_infinity=False)
positive = st.floats(0, allow_nan=False, allow_infinity=False)
text = st.text(max_size=40)
stages = st.integers(0, wire_bounds.MAX_STAGES - 1).map(StageIndex)
microbatches = st.integers(0, wire_bounds.MAX_MICROBATCHES - 1).map(Microbatch)
passes = st.builds(PassId, large.map(Term), large.map(StepNumber), small)
attempts = st.builds(Attempt, passes, stages, small, st.integers(-1, 1000))
frame_keys = st.builds(
    FrameKey, passes, st.integers(0, wire_bounds.MAX_STAGES), st.sampled_from(Direction), microbatches
)
keys = frame_keys | st.builds(PartKey, attempts, small, actors) | st.builds(SumKey, attempts, small)
payloads = st.binary(max_size=100).map(bytearray)
bits = st.integers(0, 2**70) | st.just((1 << wire_bounds.MAX_MICROBATCHES) - 1)


@st.composite
def tables(draw: st.DrawFn) -> m.StageTable:
    roster = tuple(draw(st.lists(actors, min_size=1, max_size=4)))
    assignment = draw(st.lists(st.integers(0, len(roster) - 1), max_size=8))
    places = st.lists(st.integers(-1, wire_bounds.MAX_REPLICAS - 1), min_size=len(roster), max_size=len(roster))
    return m.StageTable(draw(small), roster, tuple(assignment), tuple(draw(st.just([]) | places)))


def many(items: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(items, max_size=5).map(tuple)


donors = many(st.builds(m.Donor, actors, small))
contributions = st.builds(m.Contribution, bits, st.integers(-1, wire_bounds.MAX_REPLICAS - 1))
pairs = st.builds(
    m.CodecPair, st.text(max_size=wire_bounds.MAX_CODEC // 4), st.text(max_size=wire_bounds.MAX_CODEC // 4)
)
rates = st.floats(0, allow_infinity=False, exclude_min=True)
decisions = st.builds(
    m.Decision,
    large.map(Term),
    large.map(StepNumber),
    positive,
    finite,
    large,
    finite,
    many(st.builds(m.StageOutcome, small, text, many(contributions))),
    many(bits),
    many(pairs),
    st.floats(0, 1e6, exclude_min=True),
)
commands = st.builds(
    m.Command,
    st.integers(1, 2**63 - 1),
    st.sampled_from(("pause", "resume", "expel")),
    text,
    text,
    text,
    text,
) | st.builds(m.Command, st.just(7), st.sampled_from(("steps", "checkpoint")), st.just("12"), text, text, text)
none = st.none()
entries = (
    st.builds(m.TermEntry, large, large.map(Term), none | large)
    | st.builds(m.DecisionEntry, large, decisions)
    | st.builds(m.ArchivedEntry, large, large, large.map(Term), many(text))
    | st.builds(m.CommandEntry, large, commands)
)
offers = st.builds(m.Offer, large, large.map(Term), many(text))
lineages = none | st.builds(m.Lineage, large, large, st.booleans(), large)
receipts = none | st.builds(m.Receipt, large, large, large, large, bits)
prepared = st.builds(m.Prepared, attempts, text, positive, finite, st.booleans(), receipts, text)
wants = st.builds(m.Want, many(keys), again=st.booleans()) | many(st.tuples(keys, large)).map(
    lambda pairs: m.Want(tuple(key for key, _ in pairs), tuple(base for _, base in pairs))
)
frames = st.builds(m.Frame, frame_keys, payloads, lineages)
parts = st.builds(m.ReducePart, st.builds(PartKey, attempts, small, actors), bits, payloads, receipts)
reduced = st.builds(m.ReducedPart, st.builds(SumKey, attempts, small), payloads, receipts)

kinds = st.sampled_from(ComputeKind)
seatings = none | st.builds(
    m.Seating, many(st.text("abcXYZ019", min_size=1, max_size=60)), st.booleans(), st.booleans()
)

label = st.text(max_size=wire_bounds.MAX_LABEL)
counts = st.tuples(*[large] * len(m.LINK_KINDS))
link_uses = st.builds(m.LinkUse, actors, none | positive, none | positive, none | actors, st.just(()) | counts)
work = none | st.builds(
    m.Work,
    passes,
    stages,
    st.lists(positive, min_size=6, max_size=6).map(tuple),
    many(st.builds(m.Span, st.integers(0, 5), st.just(-1) | microbatches, small, small)),
    many(st.builds(m.Figure, label, positive)),
    many(link_uses),
)

MESSAGES: dict[type, st.SearchStrategy[Any]] = {
    m.Assign: st.builds(m.Assign, large, none | stages, large, donors, none | actors, small),
    m.Open: st.builds(
        m.Open,
        passes,
        st.sampled_from(PassKind),
        many(tables()),
        none | decisions,
        many(pairs),
        save=st.booleans(),
        steps=large,
        donors=donors,
    ),
    m.Amend: st.builds(m.Amend, passes, stages, tables(), text),
    m.Release: st.builds(m.Release, passes, small, many(microbatches)),
    m.Decide: st.builds(m.Decide, decisions, large.map(Term), st.booleans(), st.booleans()),
    m.Halt: st.builds(m.Halt, text, large.map(Term), st.booleans()),
    m.Fenced: st.builds(m.Fenced, passes, text),
    m.Dismiss: st.builds(m.Dismiss, large.map(Term), text),
    m.TakeSeats: st.builds(m.TakeSeats, large.map(Term), st.integers(0, m.MAX_SEATS), text),
    m.LeaveSeat: st.builds(m.LeaveSeat, large.map(Term), text),
    m.Excuse: st.builds(m.Excuse, large.map(Term), text),
    m.Steer: st.builds(m.Steer, text, text, text, text, text),
    m.Steered: st.builds(m.Steered, text, large, text, text),
    m.Prove: st.builds(m.Prove, large.map(Term), stages, large, large),
    m.Proof: st.builds(m.Proof, large, none | large),
    m.Disproved: st.builds(m.Disproved, large.map(Term), large),
    m.Twin: st.builds(m.Twin, large),
    m.Banned: st.builds(m.Banned, large, many(text)),
    m.Join: st.builds(m.Join, actors, none | stages, positive, large, seating=seatings, kind=kinds),
    m.Prepared: prepared,
    m.Status: st.builds(
        m.Status,
        actors,
        none | stages,
        none | large,
        none | passes,
        many(small),
        bits,
        none | prepared,
        none | positive,
        small,
        st.booleans(),
        st.integers(-1, 2**63 - 1),
        text,
        large,
        large,
        large,
        none | rates,
        many(st.builds(m.LinkRate, actors, rates)),
        leaving=st.booleans(),
        memory=none | large,
        offered_uplink=none | rates,
        downlink=none | rates,
        forwarded=bits,
        reduced=large,
        seating=seatings,
        kind=kinds,
    ),
    m.Released: st.builds(m.Released, passes, small, many(microbatches)),
    m.Unreachable: st.builds(m.Unreachable, passes, actors),
    m.Result: st.builds(m.Result, passes, microbatches, st.floats(allow_nan=False), st.integers(-1, 2**31 - 1)),
    m.Failed: st.builds(m.Failed, passes, none | microbatches, text),
    m.Leave: st.builds(m.Leave, actors, text),
    m.Telemetry: st.builds(m.Telemetry, actors, many(st.builds(m.Trait, label, label, none | positive)), work, label),
    m.LogWant: st.builds(m.LogWant, text, large, text),
    m.LogChunk: st.builds(m.LogChunk, text, large, st.binary(max_size=100)),
    m.Padding: st.builds(m.Padding, st.integers(0, len(m.PADDED_KINDS) - 1), st.binary(max_size=100)),
    m.Ping: st.builds(m.Ping, large),
    m.Pong: st.builds(m.Pong, large),
    m.Canvass: st.builds(m.Canvass, large, large, large, st.booleans()),
    m.Vote: st.builds(m.Vote, large, st.booleans(), st.booleans()),
    m.Append: st.builds(m.Append, large, large, large, many(entries), large, none | offers),
    m.Appended: st.builds(m.Appended, large, large, st.booleans(), st.integers(-1, 2**63 - 1), large, small),
    m.Adjourn: st.builds(m.Adjourn, large, text, st.booleans()),
    m.Want: wants,
    m.Pending: st.builds(m.Pending, many(frame_keys)),
    m.Frame: frames,
    m.ReducePart: parts,
    m.ReducedPart: reduced,
    m.Relay: st.builds(m.Relay, actors, actors, wants | frames | parts | reduced),
}


def test_every_message_has_a_strategy_here_and_a_number_on_the_wire() -> None:
    assert set(MESSAGES) == set(get_args(m.Message))
    assert {field.name for field in pb.Header.DESCRIPTOR.oneofs_by_name["body"].fields} == set(
        message_mapping.BODY_TYPE
    )
    for cls, plan in message_mapping._PLANS.items():
        named = set(get_type_hints(cls)) - {"payload"}
        assert named == set(plan.proto.DESCRIPTOR.fields_by_name), cls


@settings(max_examples=400)
@given(st.lists(st.one_of(*MESSAGES.values()), max_size=8))
def test_messages_of_a_stream_round_trip_in_order(messages: list[m.Message]) -> None:
    encoder, decoder = Encoder(SENDER, RECEIVER), Decoder(SENDER, RECEIVER)
    for message in messages:
        header, payload = encoder.encode(message)
        assert decoder.decode(header, bytearray(payload)) == message


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
def test_each_kind_round_trips_alone(kind: type) -> None:
    @settings(max_examples=25)
    @given(MESSAGES[kind])
    def round_trip(message: m.Message) -> None:
        header, payload = Encoder(SENDER, RECEIVER).encode(message)
        decoded = Decoder(SENDER, RECEIVER).decode(header, bytearray(payload))
        assert decoded == message and type(decoded) is kind

    round_trip()


@settings(max_examples=500)
@given(st.binary(max_size=400), st.binary(max_size=10))
def test_decoding_random_bytes_gives_a_message_or_a_wire_error(header: bytes, payload: bytes) -> None:
    decode_or_refuse(Decoder(SENDER, RECEIVER), header, payload)


@settings(max_examples=500)
@given(st.one_of(*MESSAGES.values()), st.data())
def test_decoding_damaged_messages_gives_a_message_or_a_wire_error(message: m.Message, data: st.DataObject) -> None:
    header = bytearray(Encoder(SENDER, RECEIVER).encode(message)[0])
    for _ in range(data.draw(st.integers(1, 4))):
        if header:
            header[data.draw(st.integers(0, len(header) - 1))] = data.draw(st.integers(0, 255))
    decode_or_refuse(Decoder(SENDER, RECEIVER), bytes(header[: data.draw(st.integers(0, len(header)))]), b"")


def decode_or_refuse(decoder: Decoder, header: bytes, payload: bytes) -> None:
    try:
        message = decoder.decode(header, payload)
    except WireError as error:
        assert str(error)
        return
    assert isinstance(message, get_args(m.Message))
    Encoder(SENDER, RECEIVER).encode(message)  # within the bounds: it could be sent on


PASS = pb.PassId(term=1, step=2)
KEY = pb.FrameKey(pass_id=PASS, boundary=1, microbatch=0)
STILL = pb.Update(learning_rate=0.0, bias1=1.0, bias2=1.0)
DECISION = pb.Decision(term=1, step=2, scale=0.5, tokens=10, rate=1.0, update=STILL)


def header(introduce: list[pb.Actor] | None = None, **body: Any) -> bytes:
    return pb.Header(introduce=introduce or [], **body).SerializeToString()


def decision(**changes: float) -> bytes:
    changed = pb.Decision()
    changed.CopyFrom(DECISION)
    for name, value in changes.items():
        setattr(changed, name, value)
    return header(decide=pb.Decide(decision=changed))


def prepared(**what: bytes) -> bytes:
    return header(prepared=pb.Prepared(attempt=pb.Attempt(pass_id=PASS), finite=True, squared_norm=1.0, **what))


def telemetry(**changes: Any) -> bytes:
    fields: dict[str, Any] = {"pass_id": PASS, "seconds": [1.0] * 6, **changes}
    return header(telemetry=pb.Telemetry(work=pb.Work(**fields)))


def commanded(**changes: Any) -> bytes:
    command = pb.Command(**{"number": 1, "name": "rate", "value": "2.0", "by": "Ann", "request": "r"} | changes)
    return header(append=pb.Append(entries=[pb.Entry(command=pb.CommandEntry(ballot=1, command=command))]))


def want(count: int) -> bytes:
    return header(want=pb.Want(keys=[pb.Key(frame=pb.FrameKey(pass_id=PASS))] * count))


@pytest.mark.parametrize(
    ("raw", "payload", "reason"),
    [
        (b"", b"", "unknown kind"),
        (b"\xff", b"", "not a protobuf"),
        (header(failed=pb.Failed(microbatch=1)), b"", "Failed.pass_id is missing"),
        (header(failed=pb.Failed(pass_id=PASS, microbatch=65_535)), b"", "Failed.microbatch: 65535 is out of range"),
        (header(failed=pb.Failed(pass_id=PASS)), b"x", "has a payload of 1 bytes; it must have none"),
        (header(open=pb.Open(pass_id=PASS, kind=7)), b"", "7 is not a PassKind"),
        (header(frame=pb.Frame(key=pb.FrameKey(pass_id=PASS, direction=3))), b"", "3 is not a Direction"),
        (header(amend=pb.Amend(pass_id=PASS, stage=1024, table=pb.StageTable())), b"", "1024 is out of range"),
        (header(open=pb.Open(pass_id=PASS, tables=[pb.StageTable()] * 1025)), b"", "1025 entries; at most 1024"),
        (header(release=pb.Release(pass_id=PASS, microbatches=[0] * 65_536)), b"", "65536 entries"),
        (want(wire_bounds.MAX_WANT_KEYS + 1), b"", "entries; at most"),
        (header(want=pb.Want(keys=[pb.Key()])), b"", "the Key is of an unknown kind"),
        (header(relay=pb.Relay(message=pb.Relayed())), b"", "the Relayed is of an unknown kind"),
        (header(leave=pb.Leave(actor=0, reason="x" * 1025)), b"", "the text has 1025 bytes"),
        (header(leave=pb.Leave(actor=5)), b"", "actor number 5 is unknown; 2 actors were introduced"),
        (header([pb.Actor(peer="a/b", incarnation=1)]), b"", "'a/b' is not a peer id"),
        (header([pb.Actor(peer="a" * 129, incarnation=1)]), b"", "is not a peer id"),
        (header([pb.Actor(peer="a", incarnation=2**63)]), b"", "the incarnation 9223372036854775808 is out of range"),
        (header([pb.Actor(peer="a")] * (wire_bounds.MAX_INTRODUCED + 1)), b"", "the stream introduces more than"),
        (header(reduce_part=pb.ReducePart(key=pb.PartKey(), microbatches=b"x" * 8193)), b"", "PartKey.attempt"),
        (header(status=pb.Status(done=b"\xff" * 8193)), b"", "the bit set has 8193 bytes"),
        (header(status=pb.Status(seconds_per_microbatch=math.nan)), b"", "a microbatch takes nan s"),
        (header(join=pb.Join(capacity=math.inf)), b"", "the capacity is inf"),
        (header(status=pb.Status(uplink=math.inf)), b"", "the uplink is inf bytes/s"),
        (header(status=pb.Status(uplink=0.0)), b"", "the uplink is 0.0 bytes/s"),
        (
            header(status=pb.Status(offered_uplink=math.inf)),
            b"",
            "the uplink is inf and the downlink None bytes/s",
        ),
        (header(status=pb.Status(downlink=-1.0)), b"", "the uplink is None and the downlink -1.0 bytes/s"),
        (header(join=pb.Join(kind=9)), b"", "Join.kind: 9 is not a ComputeKind; known: HOST_FP32, HOST_BF16"),
        (header(status=pb.Status(kind=99)), b"", "Status.kind: 99 is not a ComputeKind"),
        (header(status=pb.Status(links=[pb.LinkRate(bytes_per_s=math.nan)])), b"", "the link has nan bytes/s"),
        (header(status=pb.Status(links=[pb.LinkRate(bytes_per_s=-1)])), b"", "the link has -1.0 bytes/s"),
        (header(status=pb.Status(links=[pb.LinkRate(bytes_per_s=1)] * 65)), b"", "65 entries; at most 64"),
        (header(open=pb.Open(pass_id=PASS, codecs=[pb.CodecPair(forward="x" * 65)])), b"", "the text has 65 bytes"),
        (header(open=pb.Open(pass_id=PASS, codecs=[pb.CodecPair()] * 1025)), b"", "1025 entries; at most 1024"),
        (decision(scale=math.nan), b"", "the scale is nan"),
        (decision(rate=0.0), b"", "the rate is 0.0; it must be above 0 and at most 1e+06"),
        (decision(rate=math.nan), b"", "the rate is nan"),
        (decision(rate=2e6), b"", "the rate is 2000000.0"),
        (commanded(name="fly"), b"", "there is no command 'fly' with number 1"),
        (commanded(number=0), b"", "there is no command 'rate' with number 0"),
        (commanded(value="nan"), b"", "'nan' is not a rate"),
        (commanded(name="steps"), b"", "'2.0' is not a number of steps"),
        (header(steer=pb.Steer(why="x" * 1025)), b"", "the text has 1025 bytes"),
        (decision(scale=-1.0), b"", "the scale is -1.0"),
        (decision(loss_sum=math.nan), b"", "the decision applies a step with loss sum"),
        (header(decide=pb.Decide(decision=pb.Decision())), b"", "Decision.update is missing"),
        (
            header(decide=pb.Decide(decision=pb.Decision(update=pb.Update()))),
            b"",
            "the values of the update are out of range",
        ),
        (
            header(amend=pb.Amend(pass_id=PASS, table=pb.StageTable(roster=[0], carried=[0, 1]))),
            b"",
            "`carried` has 2 entries for a roster of 1",
        ),
        (
            header(amend=pb.Amend(pass_id=PASS, table=pb.StageTable(roster=[0], carried=[-2]))),
            b"",
            "-2 is out of range",
        ),
        (
            header(amend=pb.Amend(pass_id=PASS, table=pb.StageTable(roster=[0], assignment=[0, 1]))),
            b"",
            "replica 1 of a roster of 1",
        ),
        (
            header(prepared=pb.Prepared(attempt=pb.Attempt(pass_id=PASS), finite=True, squared_norm=math.nan)),
            b"",
            "reported as finite, but its squared norm is nan",
        ),
        pytest.param(
            prepared(sketch=bytes(9)), b"", "the sketches have 9 and 0 bytes; a sketch has 512", id="part of a sketch"
        ),
        pytest.param(prepared(outline=bytes(511)), b"", "the sketches have 0 and 511 bytes", id="part of an outline"),
        pytest.param(prepared(sketch=bytes(1536)), b"", "1536 bytes; at most 1024", id="three sketches"),
        pytest.param(prepared(outline=bytes(1024)), b"", "1024 bytes; at most 512", id="two outlines"),
        (header(telemetry=pb.Telemetry(work=pb.Work(pass_id=PASS, seconds=[1.0] * 5))), b"", "there must be 6"),
        (header(telemetry=pb.Telemetry(work=pb.Work(pass_id=PASS, seconds=[1.0] * 7))), b"", "7 entries; at most 6"),
        (telemetry(seconds=[math.nan] * 6), b"", "seconds of work are (nan"),
        (telemetry(seconds=[-1.0] * 6), b"", "seconds of work are (-1.0"),
        (telemetry(spans=[pb.Span()] * 65), b"", "65 entries; at most 64"),
        (telemetry(spans=[pb.Span(kind=6)]), b"", "6 is out of range: 0 to 5"),
        (telemetry(spans=[pb.Span(microbatch=-2)]), b"", "-2 is out of range"),
        (telemetry(links=[pb.LinkUse()] * 33), b"", "33 entries; at most 32"),
        (telemetry(links=[pb.LinkUse(rtt_s=math.inf)]), b"", "a round trip of inf s"),
        (telemetry(links=[pb.LinkUse(sent=[1, 2])]), b"", "`sent` has 2 entries"),
        (telemetry(usage=[pb.Figure(name="cpu", value=math.nan)]), b"", "cpu is nan"),
        (telemetry(usage=[pb.Figure()] * 17), b"", "17 entries; at most 16"),
        (header(telemetry=pb.Telemetry(machine=[pb.Trait(name="x" * 81)])), b"", "the text has 81 characters"),
        (header(telemetry=pb.Telemetry(machine=[pb.Trait(text="ä" * 81)])), b"", "the text has 81 characters"),
        (
            header(telemetry=pb.Telemetry(machine=[pb.Trait(name="memory", number=-1)])),
            b"",
            "the machine reports memory",
        ),
        (header(telemetry=pb.Telemetry(machine=[pb.Trait()] * 17)), b"", "17 entries; at most 16"),
        (header(log_chunk=pb.LogChunk(lines=b"x" * 65_537)), b"", "65537 bytes; at most 65536"),
        # field 22 of Header is `restart`; a string field of Fenced with bytes that are not UTF-8
        (b"\x7a\x08\x0a\x02\x08\x01\x12\x02\xff\xfe", b"", "not a protobuf"),
    ],
)
def test_what_is_malformed_is_refused_by_name(raw: bytes, payload: bytes, reason: str) -> None:
    with pytest.raises(WireError, match=None) as caught:
        Decoder(SENDER, RECEIVER).decode(raw, payload)
    assert reason in str(caught.value)


def test_a_skip_and_a_gradient_that_is_not_finite_may_say_so() -> None:
    prepared = m.Prepared(Attempt(PassId(Term(1), StepNumber(1)), StageIndex(0), 1), "d", math.inf, math.inf, False)
    skip = m.Decide(m.Decision(Term(1), StepNumber(1), 0.0, math.inf, 5, math.inf, ()), Term(1))
    for message in (prepared, skip):
        header, _ = Encoder(SENDER, RECEIVER).encode(message)
        assert Decoder(SENDER, RECEIVER).decode(header, b"") == message


def test_lengths_are_judged_before_anything_is_allocated() -> None:
    wire_bounds.check_lengths(10, 20, 10, 20)
    with pytest.raises(WireError, match="the header of the frame has 11 bytes; at most 10"):
        wire_bounds.check_lengths(11, 0, 10, 20)
    with pytest.raises(WireError, match="the payload of the frame has 4294967295 bytes"):
        wire_bounds.check_lengths(0, 2**32 - 1, 10, 20)


def test_a_message_that_cannot_be_sent_leaves_the_table_of_actors_as_it_was() -> None:
    encoder, decoder = Encoder(SENDER, RECEIVER), Decoder(SENDER, RECEIVER)
    with pytest.raises(WireError, match="not a peer id"):
        encoder.encode(
            m.Open(
                PassId(Term(1), StepNumber(1)),
                PassKind.TRAIN,
                (m.StageTable(0, (Actor("x", 1), Actor("", 1)), ()),),
                None,
            )
        )
    message = m.Leave(Actor("y", 2), "bye")
    assert decoder.decode(encoder.encode(message)[0], b"") == message


def test_the_table_of_actors_starts_over_before_it_is_full() -> None:
    encoder, decoder = Encoder(SENDER, RECEIVER), Decoder(SENDER, RECEIVER)
    for incarnation in range(wire_bounds.MAX_INTRODUCED + 100):
        message = m.Leave(Actor("peer", incarnation), "")
        assert decoder.decode(encoder.encode(message)[0], b"") == message
    assert len(decoder._actors) <= wire_bounds.MAX_INTRODUCED


@pytest.mark.parametrize(
    "lineage",
    [None, m.Lineage(source=1 << 62, fresh=True), m.Lineage(1 << 62, base=1 << 62), m.Lineage(1 << 62, trail=1 << 62)],
)
def test_a_frame_costs_at_most_64_bytes_beside_what_its_codec_makes_of_the_values(lineage: m.Lineage | None) -> None:
    late = FrameKey(PassId(Term(1_000), StepNumber(1_000_000)), 30, Direction.BACKWARD, Microbatch(4_000))
    header, payload = Encoder(SENDER, RECEIVER).encode(m.Frame(late, b"x" * 1000, lineage))
    assert PREFIX_BYTES + len(header) + len(payload) - 1000 + body.HEADER_BYTES + codec.HEADER_BYTES <= 64


def test_a_data_frame_costs_at_most_64_bytes_besides_its_payload() -> None:
    late = PassId(Term(1_000), StepNumber(1_000_000))
    attempt = Attempt(late, StageIndex(15), 9)
    third = Actor("12D3KooWQxDKsSvG36RVfqbKD8TZVURvuDmWN5iQyaiubEFJzuP3", 1_763_000_000_789)
    frame = m.Frame(FrameKey(late, 15, Direction.BACKWARD, Microbatch(4000)), b"x" * 1000)
    part = m.ReducePart(PartKey(attempt, 300, SENDER), (1 << 128) - 1, b"x" * 1000)
    encoder = Encoder(SENDER, RECEIVER)
    encoder.encode(m.Relay(third, RECEIVER, frame))  # now the third is known
    for message in (frame, part, m.ReducedPart(SumKey(attempt, 300), b"x"), m.Relay(third, RECEIVER, part)):
        header, payload = encoder.encode(message)
        assert len(header) + PREFIX_BYTES <= 64, message
        assert bytes(payload) == wire.payload_of(message)
