"""The terms of one coordinator. A new term voids all messages of earlier ones, and begins once it is on disk."""

from __future__ import annotations

from swarm.events import CoordinatorStarted
from swarm.protocol.coordinator.io import WriteTerm
from swarm.protocol.coordinator.membership.history import History
from swarm.protocol.coordinator.membership.members import Members
from swarm.protocol.coordinator.placement.survey import NewTerm
from swarm.protocol.ids import Term
from swarm.protocol.outbox import Outbox


class Terms:
    """`request` orders a term, `written` reports that it is on disk."""

    def __init__(self, history: History, members: Members, out: Outbox) -> None:
        self._history = history
        self._members = members
        self._out = out
        self._requested: WriteTerm | None = None
        self.why = "all earlier messages are void"
        """The reason for the newest request."""
        self.started = False
        """True once the first term of this process has begun."""

    @property
    def is_requested(self) -> bool:
        """True while a term is being written."""
        return self._requested is not None

    @property
    def goes_back(self) -> bool:
        """True while a term is being written with which the run goes back to an earlier version."""
        return self._requested is not None and self._requested.rollback_to is not None

    @property
    def decided(self) -> int:
        """The last decided step that was not rolled back; −1: none, or it is not known yet."""
        if not self.started:
            return -1
        version = None if self._requested is None else self._requested.rollback_to
        return (self._history.version if version is None else version) - 1

    def request(self, wanted: NewTerm, why: str = "") -> None:
        """Request a new term. `why`: empty if the reason is the one of the last request."""
        self.why = why or self.why
        self._requested = WriteTerm(self._members.next_term(self._history.term), wanted.rollback_to)
        self._out.add(self._requested)

    def written(self, term: int) -> NewTerm | None:
        """A term is on disk. Return what was requested with it; None if it was not requested last."""
        request = self._requested
        if request is None or term != request.term:
            return None
        self._requested = None
        self._history.term = Term(term)
        return NewTerm(request.rollback_to)

    def begin(self) -> None:
        """The term begins. Report the first one of this process."""
        if not self.started:
            self.started = True
            self._out.emit(CoordinatorStarted(self._history.term, self._history.version - 1))
