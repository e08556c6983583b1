"""A coordinator's core with one stage, driven by hand. The test decides what the peers report."""

from __future__ import annotations

from swarm.protocol import messages as m
from swarm.protocol.coordinator.core import CoordinatorCore
from swarm.protocol.coordinator.io import CoordinatorInput, RecordWritten, TermWritten, WriteRecord
from swarm.protocol.ids import Actor, Attempt, PassId, StageIndex
from swarm.protocol.io import Received, Send, Tick
from swarm.protocol.settings import Settings
from swarm.simulation.runs.plan import small_settings

ME = Actor("coordinator", 0)
ONE, TWO, THREE, FOUR = (Actor(name, 1) for name in ("one", "two", "three", "four"))
STRANGER = Actor("stranger", 1)
STAGE = StageIndex(0)


def settings(*, steps: int = 2, replicas: int = 2, evaluate_every: int = 0, sample_tokens: int = 0) -> Settings:
    return small_settings(
        stages=1,
        microbatches=2,
        steps=steps,
        replicas=replicas,
        evaluate_every=evaluate_every,
        sample_tokens=sample_tokens,
    )


class Run:
    """One stage, driven by hand. `versions`: what each peer reports at every heartbeat."""

    def __init__(self, of: Settings, peers: tuple[Actor, ...] = (ONE, TWO), decision: m.Decision | None = None) -> None:
        self.core = CoordinatorCore(ME, of, 0, decision, None)
        self.now = 0.0
        self.versions: dict[Actor, int | None] = dict.fromkeys(peers, None)
        self.loading: dict[Actor, int] = {}
        """The peers that listen, with the version that each loads."""
        self.saved: dict[Actor, tuple[int, str]] = {}
        self.state_term = 1
        """The term under which all peers received their state."""
        self.sequence = 0
        self._forwarded: dict[Actor, int] = {}
        self.orders: list[object] = []
        """All orders that the core has given."""
        self.take(Tick())
        self.take(TermWritten(1))
        for actor in peers:
            self.hear(actor, m.Join(actor))

    @property
    def pass_id(self) -> PassId:
        assert self.core.open_pass is not None
        return self.core.open_pass.pass_state.pass_id

    def take(self, event: CoordinatorInput) -> list[object]:
        self.now += 0.001
        orders = list(self.core.handle(event, self.now))
        self.orders += orders
        return orders

    def hear(self, actor: Actor, message: m.Message) -> list[object]:
        return self.take(Received(actor, message))

    def report(self, actor: Actor) -> list[object]:
        version, digest = self.saved.get(actor, (-1, ""))
        self.sequence += 1
        open_pass = self.core.open_pass.pass_state.pass_id if self.core.open_pass is not None else None
        listens = actor in self.loading
        status = m.Status(
            actor,
            STAGE,
            self.versions[actor],
            None if listens else open_pass,
            () if listens else (0,),
            heard=open_pass if listens else None,
            loading=self.loading.get(actor),
            state_term=self.state_term,
            forwarded=0 if listens else self._progress(actor),
            checkpoint_version=version,
            checkpoint_digest=digest,
            sequence=self.sequence,
        )
        return self.hear(actor, status)

    def _progress(self, actor: Actor) -> int:
        """Another set of microbatches in every report, so that no peer counts as stalled."""
        self._forwarded[actor] = self._forwarded.get(actor, 1) ^ 1
        return (1 << self.core.settings.microbatches) - 1 - self._forwarded[actor]

    def heartbeats(self, seconds: float) -> list[object]:
        """Let time pass. Every peer reports its state at each heartbeat."""
        orders: list[object] = []
        until = self.now + seconds
        while self.now < until:
            self.now += 0.2
            for actor in self.versions:
                orders += self.report(actor)
        return orders

    def load(self, *actors: Actor) -> None:
        for actor in actors:
            self.versions[actor] = self.core.history.version
            self.report(actor)

    def decide(self, *actors: Actor) -> m.Decision:
        """Let `actors` prepare, decide and apply the open step."""
        prepared = m.Prepared(Attempt(self.pass_id, STAGE, 0), "d", 1.0, 1.0)
        orders = [order for actor in actors for order in self.hear(actor, prepared)]
        (write,) = [order for order in orders if isinstance(order, WriteRecord)]
        self.take(RecordWritten(write.decision))
        for actor in actors:
            self.versions[actor] = self.core.history.version
        for actor in actors:
            self.report(actor)
        return write.decision


def sent(orders: list[object], kind: type, to: Actor | None = None) -> list[object]:
    return [o.message for o in orders if isinstance(o, Send) and isinstance(o.message, kind) and to in (None, o.to)]
