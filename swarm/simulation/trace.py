"""Readable lines: what came in and what was ordered, short enough for a whole run to be read top to bottom."""

from __future__ import annotations

import dataclasses
from typing import Any

from swarm.events import Event
from swarm.protocol import actions as act
from swarm.protocol import messages as msg


def describe_input(item: Any) -> str:
    match item:
        case act.Tick():
            return "tick"
        case act.Received(sender, message):
            return f"← {sender}: {describe_message(message)}"
        case act.LinkLost(other):
            return f"LinkLost {other}"
        case act.LinkUp(other):
            return f"LinkUp {other}"
        case act.Undelivered(other, messages):
            return f"{len(messages)} messages to {other} undelivered"
        case act.ForwardDone(pass_id, microbatch):
            return f"forward done {pass_id} m{microbatch}"
        case act.BackwardDone(pass_id, microbatch):
            return f"backward done {pass_id} m{microbatch}"
        case act.Assembled(attempt, digest):
            return f"assembled {attempt} {digest[:6]}"
        case act.PartEncoded(attempt, bucket):
            return f"part encoded {attempt} b{bucket}"
        case act.BucketSummed(attempt, bucket):
            return f"bucket summed {attempt} b{bucket}"
        case act.AppliedStep(step, _):
            return f"applied step {step}: now version {step + 1}"
        case act.RecordWritten(decision):
            return f"record of step {decision.step} is durable (term {decision.term})"
        case _:
            return _fields(item)


def describe_action(action: Any) -> str:
    """Empty for actions that only repeat what another line says."""
    match action:
        case act.Send(to, message):
            if isinstance(message, msg.Status):
                return ""
            return f"→ {to}: {describe_message(message)}"
        case act.Emit(event):
            return _event(event)
        case act.Forward(pass_id, _, microbatch):
            return f"forward {pass_id} m{microbatch}"
        case act.Backward(pass_id, microbatch):
            return f"backward {pass_id} m{microbatch}"
        case act.Discard(_, microbatch):
            return f"discard m{microbatch}"
        case act.Begin(pass_id, kind):
            return f"BEGIN {pass_id} {kind.value}"
        case act.EncodePart(attempt, bucket):
            return f"encode {attempt} b{bucket}"
        case act.SumBucket(attempt, bucket):
            return f"sum {attempt} b{bucket}"
        case act.StoreSum(_, bucket):
            return f"store b{bucket}"
        case act.Assemble(attempt):
            return f"assemble {attempt}"
        case act.CancelReduce(attempt):
            return f"cancel {attempt}"
        case act.Apply(decision, attempt):
            return f"APPLY step {decision.step} from {attempt}"
        case act.SettleBases(step, kept, dropped):
            return f"of step {step} keeps {len(kept)} bases, drops {len(dropped)}"
        case act.Feed(to, key):
            return f"feed {key} → {to}"
        case act.WriteRecord(decision):
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
