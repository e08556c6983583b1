"""The stage and version that a peer holds or loads. Late and repeated orders change nothing."""

from __future__ import annotations

from swarm.protocol.ids import PassId, StageIndex, Term
from swarm.protocol.messages import Assign, Donor, Listener
from swarm.protocol.peer.io import LoadState, StateFailed, StateLoaded


class HeldStage:
    """The stage and version of a peer. Within a term, the held version only increases. A newer term may set it back
    (rollback).
    """

    def __init__(self) -> None:
        self.term = -1
        """The newest term that this peer knows."""
        self.stage: StageIndex | None = None
        self.version: int | None = None
        self.buckets = 1
        """Number of buckets that the stage's gradient is divided into."""
        self.first_round = 0
        """Number of buckets that are reduced before the others."""
        self.shared = 0
        """Number of buckets, from the first, that another stage shares."""
        self.standing_by = False
        self._loading: LoadState | None = None
        self.state_term = -1
        """The newest term under which this peer received a state or began a pass."""
        self._reached = -1
        """The newest version that was held in that term. It may be lost by now."""
        self._move = 0
        """The number of the last move in that term."""

    @property
    def loading(self) -> int | None:
        """The version that is being loaded; None: no version."""
        return None if self._loading is None else self._loading.version

    def assigned(self, assign: Assign) -> LoadState | None:
        """Process an order. Return what to load if the order is new; the state held before is then given up."""
        if assign.term < self.term:
            return None
        self.term = assign.term
        if assign.stage is None:
            self.standing_by = self.stage is None
            return None
        if assign.term == self.state_term and assign.move > self._move:
            self._move = assign.move
            if assign.stage != self.stage:
                self._reached = -1  # the version reached in another stage does not count
                self.stage, self.version, self._loading = assign.stage, None, None
        if assign.term <= self.state_term:
            if assign.term == self.state_term and assign.move < self._move:
                return None  # a late repeat of an order from before the last move
            held = self._loading.version if self._loading is not None else self.version
            if held is not None and (assign.version <= held or assign.stage != self.stage):
                return None
            if assign.version <= self._reached:
                return None  # a late repetition: the version that it names was held here and lost
        else:
            self._reached, self._move = -1, assign.move
        self.state_term = assign.term
        self.stage, self.version = assign.stage, None
        self.standing_by = False
        self._loading = LoadState(assign.stage, assign.version, assign.donors, assign.archive)
        return self._loading

    def listens(
        self, listener: Listener, term: Term, rolled_back_in: Term, donors: tuple[Donor, ...]
    ) -> LoadState | None:
        """Take up a stage while others train. Return what to load if this peer neither holds nor loads a usable
        state.
        """
        if term == self.state_term and listener.move < self._move:
            return None  # this peer has moved since
        self.term = term
        goes_on = self.stage == listener.stage and self.stands(rolled_back_in)
        held = self.version if self._loading is None else self._loading.version
        if goes_on and held is not None and (self._loading is not None or held >= listener.version):
            self.state_term, self._move = term, listener.move
            return None
        self.state_term, self._move, self._reached = term, listener.move, -1
        self.stage, self.version = listener.stage, None
        self.standing_by = False
        self._loading = None
        if listener.loads:
            self._loading = LoadState(listener.stage, listener.version, donors)
        return self._loading

    def stands(self, rolled_back_in: Term) -> bool:
        """Return True if the state that is held or loading belongs to the valid history. `rolled_back_in`: the term of
        the last rollback.
        """
        return self.state_term >= rolled_back_in

    def loaded(self, event: StateLoaded | StateFailed) -> bool:
        """The order to load is done, or has failed. Return True if a version is held now."""
        loading = self._loading
        if loading is None or (event.stage, event.version) != (loading.stage, loading.version):
            return False
        self._loading = None
        if isinstance(event, StateFailed):
            return False
        self.version = self._reached = event.version
        self.buckets = event.buckets
        self.first_round = event.first_round
        self.shared = event.shared
        return True

    def begun(self, pass_id: PassId) -> None:
        if pass_id.term > self.state_term:
            self.state_term, self._move = pass_id.term, 0

    def applied(self, step: int) -> None:
        self.version = self._reached = step + 1

    def spoilt(self) -> None:
        """The state is unusable and must be fetched again: an optimizer step failed halfway, or the sums of a step are
        lost.
        """
        self.version = self._loading = None
