"""Readable lines for inputs and orders, short enough that a whole run can be read from top to bottom."""

from __future__ import annotations

import dataclasses
from typing import Any

from swarm.events import Event
from swarm.protocol import io
from swarm.protocol import messages as msg
from swarm.protocol.coordinator import io as coordinator_io
from swarm.protocol.peer import io as peer_io


def describe_input(item: Any) -> str:
    match item:
        case io.Tick():
            return "tick"
        case io.Received(sender, message):
            return f"← {sender}: {describe_message(message)}"
        case io.LinkLost(other):
            return f"LinkLost {other}"
        case io.LinkUp(other):
            return f"LinkUp {other}"
        case peer_io.Undelivered(other, messages):
            return f"{len(messages)} messages to {other} undelivered"
        case peer_io.ForwardDone(pass_id, microbatch):
            return f"forward done {pass_id} m{microbatch}"
        case peer_io.BackwardDone(pass_id, microbatch):
            return f"backward done {pass_id} m{microbatch}" + (", weights due" if item.weights_due else "")
        case peer_io.WeightsDone(pass_id, microbatch):
            return f"weights done {pass_id} m{microbatch}"
        case peer_io.Assembled(attempt, digest):
            return f"assembled {attempt} {digest[:6]}"
        case peer_io.PartEncoded(attempt, bucket):
            return f"part encoded {attempt} b{bucket}"
        case peer_io.BucketSummed(attempt, bucket):
            return f"bucket summed {attempt} b{bucket}"
        case peer_io.AppliedStep(step, _):
            return f"applied step {step}: now version {step + 1}"
        case coordinator_io.RecordWritten(decision):
            return f"record of step {decision.step} is durable (term {decision.term})"
        case _:
            return _fields(item)


def describe_action(action: Any) -> str:
    """One line for an action; empty if it would only repeat another line."""
    match action:
        case io.Send(to, message):
            if isinstance(message, msg.Status):
                return ""
            return f"→ {to}: {describe_message(message)}"
        case io.Emit(event):
            return _event(event)
        case peer_io.Forward(pass_id, _, microbatch):
            return f"forward {pass_id} m{microbatch}"
        case peer_io.Backward(pass_id, microbatch):
            return f"backward {pass_id} m{microbatch}"
        case peer_io.Weights(pass_id, microbatch):
            return f"weights {pass_id} m{microbatch}"
        case peer_io.Discard(_, microbatch):
            return f"discard m{microbatch}"
        case peer_io.Begin(pass_id, kind):
            return f"BEGIN {pass_id} {kind.value}"
        case peer_io.EncodePart(attempt, bucket):
            return f"encode {attempt} b{bucket}"
        case peer_io.SumBucket(attempt, bucket):
            return f"sum {attempt} b{bucket}"
        case peer_io.StoreSum(_, bucket):
            return f"store b{bucket}"
        case peer_io.Assemble(attempt):
            return f"assemble {attempt}"
        case peer_io.CancelReduce(attempt):
            return f"cancel {attempt}"
        case peer_io.Apply(decision, attempt):
            return f"APPLY step {decision.step} from {attempt}"
        case peer_io.SettleBases(step, kept, dropped):
            return f"of step {step} keeps {len(kept)} bases, drops {len(dropped)}"
        case coordinator_io.Feed(to, key):
            return f"feed {key} → {to}"
        case coordinator_io.WriteRecord(decision):
            return f"WRITE RECORD of step {decision.step}"
        case _:
            return _fields(action)


def describe_message(message: Any) -> str:
    match message:
        case msg.Frame(key):
            return f"Frame {key}"
        case msg.Want(keys):
            return ("Want again " if message.again else "Want ") + " ".join(_key(key) for key in keys)
        case msg.Pending(keys):
            return "Pending " + " ".join(map(str, keys))
        case msg.ReducePart(key, microbatches):
            return f"Part {_key(key)} of {_bits(microbatches)}"
        case msg.ReducedPart(key):
            return f"Sum {_key(key)}"
        case msg.Open(pass_id, kind, tables, decision):
            applied = f" after decision {decision.step}" if decision else ""
            return f"Open {pass_id} {kind.value}{applied} " + " | ".join(_table(table) for table in tables)
        case msg.Amend(pass_id, stage, table, reason):
            return f"Amend {pass_id} s{stage} {_table(table)} ({reason})"
        case msg.Prepared(attempt, digest):
            return f"Prepared {attempt} {digest[:6]}"
        case msg.Status():
            prepared = f" prepared {message.prepared.attempt}" if message.prepared else ""
            fenced = " FENCED" if message.fenced else ""
            numbers = ",".join(map(str, message.numbers))
            return (
                f"Status s{message.stage} v{message.version} {message.pass_id} n[{numbers}] "
                f"done {_bits(message.done)}{prepared}{fenced}"
            )
        case msg.Decide(decision, finished):
            return f"Decide step {decision.step}" + (" FINISHED" if finished else "")
        case msg.Relay(origin, destination, inner):
            return f"Relay {origin}→{destination}: {describe_message(inner)}"
        case _:
            return _fields(message)


def _event(event: Event) -> str:
    return "[" + _fields(event) + "]"


def _key(key: Any) -> str:
    contributor = f" by {key.contributor}" if hasattr(key, "contributor") else ""
    return f"{key.attempt}/b{key.bucket}{contributor}" if hasattr(key, "attempt") else str(key)


def _table(table: msg.StageTable) -> str:
    shares = []
    for index, actor in enumerate(table.roster):
        mine = ",".join(str(m) for m, who in enumerate(table.assignment) if who == index)
        shares.append(f"{actor}:{mine or '–'}")
    return f"n{table.number} " + " ".join(shares)


def _bits(mask: int) -> str:
    return "{" + ",".join(str(m) for m in range(mask.bit_length()) if mask >> m & 1) + "}"


def _fields(item: Any) -> str:
    shown = []
    for field in dataclasses.fields(item):
        value = getattr(item, field.name)
        if field.repr and value not in (None, (), False):
            shown.append(f"{field.name}={_value(value)}")
    return f"{type(item).__name__} " + " ".join(shown)


def _value(value: Any) -> str:
    if isinstance(value, msg.Decision):
        return f"<step {value.step} term {value.term}>"
    return str(value)
