"""What the log lines of one reading become in the database: rows about steps, evaluations, faults, marks and work."""

from __future__ import annotations

import dataclasses
import json

from peers.dashboard.history.store import Store
from peers.dashboard.history.tail import Line
from peers.fold import RunState
from peers.fold.faults import MOST_FAULTS, FaultRecord
from peers.fold.reading import Malformed, Record, step_of
from peers.fold.trouble import in_words
from peers.fold.work import Step

QUIET = frozenset(
    ("PeerWorked", "PassProgress", "TrafficMeasured", "ResourcesMeasured", "FrameRecovered", "LogContinued")
)
"""Kinds of events that the log page leaves out, because they are too frequent."""
MARKS = {
    "Evaluated": "evaluation",
    "CheckpointArchived": "checkpoint",
    "ControlGiven": "control",
    "CoordinatorStarted": "restart",
}
_CAUGHT_UP = 64
"""Largest number of steps that are recorded late, because no line told of their decision."""


class Recording:
    """Adds rows to a store. `state`: the run after the lines that are recorded already."""

    def __init__(self, store: Store, state: RunState) -> None:
        self._store, self._state = store, state
        self._last_step = state.run.step
        self._told: dict[int, FaultRecord] = {}
        """For each fault, the version of its entry that was written last."""
        self._faults_written = 0
        """Number of the faults that there were when they were written last."""

    def take(self, line: Line, record: Record) -> None:
        """Record a line that the state contains by now."""
        source, path = line.tail.source, str(line.tail.path)
        actor = record.get("actor")
        actor = actor if type(actor) is str and len(actor) <= 80 else ""
        if line.kind == "PeerWorked":
            self._take_work(record, actor, path, line.offset)
        elif line.kind not in QUIET:
            own = "" if source.startswith("coordinator") else source
            self._store.add_line(line.at, source, path, line.offset, line.kind, actor or own)
            self._take_news(record, line)
        if self._state.faults.number - self._faults_written > MOST_FAULTS // 2:
            self.write_faults()  # the state holds the newest ones only

    def write_faults(self) -> None:
        """Add the faults that are new or have changed since they were written."""
        kept: dict[int, FaultRecord] = {}
        for fault in self._state.faults.items:
            told = self._told.get(fault.id)
            if told != fault:
                told = dataclasses.replace(fault)
                values = (fault.id, fault.at, fault.step, json.dumps(dataclasses.asdict(fault)))
                self._store.add("INSERT OR REPLACE INTO faults VALUES (?, ?, ?, ?)", values)
            kept[fault.id] = told
        self._told = kept
        self._faults_written = self._state.faults.number

    def _take_work(self, record: Record, actor: str, path: str, offset: int) -> None:
        stage, pass_id = record.get("stage"), record.get("pass_id")
        if actor not in self._state.members.here or type(stage) is not int or type(pass_id) is not str:
            return
        try:
            step = step_of(pass_id)
        except Malformed:
            return
        self._store.add_work(step, actor, stage % (1 << 31), path, offset)

    def _take_news(self, record: Record, line: Line) -> None:
        kind, store, state = line.kind, self._store, self._state
        step = state.run.step
        if kind in ("StepDecided", "StepMeasured"):
            self._take_steps(record.get("step"))
        elif step > self._last_step:  # reported only by coordinators other than the deciding one
            self._take_steps(*range(max(self._last_step, step - _CAUGHT_UP) + 1, step + 1))
        if step < self._last_step:
            store.add("DELETE FROM steps WHERE step > ?", (step,))
            store.undo_work(step)
            store.add("DELETE FROM evaluations WHERE version > ?", (step + 1,))
        self._last_step = step
        if kind == "Evaluated" and state.results.evaluations:
            each = state.results.evaluations[-1]
            if each.at == line.at:
                store.add("INSERT OR REPLACE INTO evaluations VALUES (?, ?, ?)", (each.version, each.at, each.loss))
        if kind == "ControlGiven" and not (state.run.controls and state.run.controls[-1].at == line.at):
            return  # another coordinator of the group has reported it
        if (mark := MARKS.get(kind)) is not None:
            store.add("INSERT OR REPLACE INTO marks VALUES (?, ?, ?)", (line.at, mark, in_words(record)))

    def _take_steps(self, *numbers: object) -> None:
        for step in self._state.work.steps:
            if step.step in numbers:
                self._take_step(step)

    def _take_step(self, step: Step) -> None:
        state = self._state
        speed = step.tokens_per_second or (step.tokens / step.seconds if step.seconds else None)
        sent = min(sum(state.links.sent.values()), 2**62)
        values = (step.step, step.pass_id, step.opened_at, step.decided_at, step.seconds, step.loss, step.gradient_norm)
        more = (speed, step.ideal, step.efficiency, state.work.hour.goodput(), len(state.members.here), sent)
        query = f"INSERT OR REPLACE INTO steps VALUES ({','.join('?' * 14)})"
        self._store.add(query, (*values, *more, step.tokens))
