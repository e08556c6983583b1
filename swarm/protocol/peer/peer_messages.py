"""Messages from other peers: frames, parts and sums for the open pass, requests for them, and relayed messages.

A message for a pass that is not open here yet is kept until it opens.
"""

from __future__ import annotations

from swarm.protocol.ids import Actor, FrameKey, PassId
from swarm.protocol.io import Send
from swarm.protocol.messages import Frame, Message, Pending, ReducedPart, ReducePart, Relay, Want
from swarm.protocol.outbox import Outbox
from swarm.protocol.peer.early_messages import LIMIT_BYTES, MEMBER_BYTES, EarlyMessages
from swarm.protocol.peer.leader import Leader
from swarm.protocol.peer.pass_run import PassRun
from swarm.protocol.peer.step_cycle import StepCycle

Data = Want | Pending | Frame | ReducePart | ReducedPart


class PeerMessages:
    """Hands data to the open pass, if the sender has a part in it."""

    def __init__(self, me: Actor, leader: Leader, steps: StepCycle, out: Outbox) -> None:
        self.early = EarlyMessages()
        self._me = me
        self._leader = leader
        self._steps = steps
        self._out = out

    def pass_run_of(self, pass_id: PassId, sender: Actor, message: Message) -> PassRun | None:
        """Return the pass run if `pass_id` is the open pass. Otherwise return None, and keep the message if its pass
        opens later.
        """
        pass_run = self._steps.pass_run
        if pass_run is not None and pass_id == pass_run.pass_id:
            return pass_run
        if pass_run is None or pass_id > pass_run.pass_id:
            # the coordinator sends the first tokens of a pass, whatever their size
            share = LIMIT_BYTES if sender == self._leader.actor else MEMBER_BYTES
            self.early.keep(sender, message, share)
        return None

    def relayed(self, sender: Actor, relay: Relay, now: float) -> None:
        """Take a relayed message for this peer, or forward one to another peer."""
        origin, destination, inner = relay.origin, relay.destination, relay.message
        pass_run = self._steps.pass_run
        if not self._takes_part(sender):
            return
        if destination == self._me:
            if pass_run is not None and isinstance(inner, Frame) and pass_run.microbatches.wants.overdue(origin):
                pass_run.microbatches.detours.report(origin, sender, "answers only through a sibling")
            self.hear(origin, inner, sender, now)
        elif sender == origin and pass_run is not None and pass_run.serves(destination):
            self._out.add(Send(destination, relay))

    def hear(self, sender: Actor, message: Message, via: Actor | None, now: float) -> None:
        """Process a message. `via`: the peer that forwarded it; None: it came directly."""
        pass_run = self._steps.pass_run
        match message:
            case Frame(key) if sender == self._leader.actor:  # the first tokens come without a Want
                if (named := self.pass_run_of(key.pass_id, sender, message)) is not None:
                    named.microbatches.on_frame(sender, message, now)
            case Frame(key):  # answers a Want of this peer, so the pass is open here
                if pass_run is not None and key.pass_id == pass_run.pass_id and self._takes_part(sender):
                    pass_run.microbatches.on_frame(sender, message, now)
            case Pending(keys):
                if pass_run is not None:
                    pass_run.microbatches.on_pending(sender, keys, now)
            case Want():
                self._on_want(sender, message, via)
            case ReducePart(key) if sender == key.contributor:
                if (named := self.pass_run_of(key.attempt.pass_id, sender, message)) is not None:
                    named.on_part(message, now, via)
            case ReducedPart():
                if pass_run is not None:
                    pass_run.on_sum(sender, message, now, via)
            case _:
                pass

    def _on_want(self, sender: Actor, want: Want, via: Actor | None) -> None:
        pending: list[FrameKey] = []
        for index, key in enumerate(want.keys):
            base = want.base(index)
            pass_run = self._steps.pass_run
            if isinstance(key, FrameKey):  # a credit, which may arrive before the pass opens
                pass_run = self.pass_run_of(key.pass_id, sender, Want((key,), (base,), want.again))
            if pass_run is not None and self._takes_part(sender) and pass_run.on_want(sender, key, via, base):
                assert isinstance(key, FrameKey)
                pending.append(key)
        if pending and want.again and via is None:  # a relayed Want would not prove that the link works
            self._out.send(sender, Pending(tuple(dict.fromkeys(pending))))

    def _takes_part(self, actor: Actor) -> bool:
        """True if an actor has a part in the open pass. Other actors pass the handshake, but their data are refused."""
        pass_run = self._steps.pass_run
        if pass_run is None:
            return actor == self._leader.actor
        return actor == pass_run.microbatches.coordinator or pass_run.serves(actor)
