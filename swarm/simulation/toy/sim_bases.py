"""The bases of a simulated peer: reconstructions of earlier visits, if only changes are sent over the boundaries."""

from __future__ import annotations

from swarm.protocol.ids import BaseKey, End, Microbatch, PassId, PassKind
from swarm.protocol.peer import io as peer_io
from swarm.simulation.kernel.violation import Violation
from swarm.simulation.toy.peer_body import PeerBody
from swarm.simulation.toy.toy_model import change, reconstruction_digest, rounded, rounded_since


class SimBases:
    """The bases of one process."""

    def __init__(self, peer: PeerBody) -> None:
        self._peer = peer
        self._kept: dict[BaseKey, int] = {}
        self._staged: dict[BaseKey, int] = {}
        """Bases of the open pass. They are kept if it is decided."""

    def clear(self) -> None:
        """Another state is loaded."""
        self._kept.clear()
        self._staged.clear()

    def begin(self) -> None:
        """A pass begins. Bases staged by another pass are void."""
        self._staged.clear()

    def discard(self, pass_id: PassId, m: Microbatch) -> None:
        """Another peer computes this microbatch."""
        for end in End:
            self._staged.pop(BaseKey(pass_id.step, m, end), None)

    def settle(self, action: peer_io.SettleBases) -> None:
        for key in action.dropped:
            self._kept.pop(key, None)
        for key in action.kept:
            self._kept[key] = self._staged[key]
        self._staged.clear()

    def taken_in(self, action: peer_io.Forward, payload: int) -> int:
        """The received activation as the receiver decodes it."""
        if action.decode_with is not None:
            payload = change(payload, self._base(action.decode_with))
        if self._peer.stage and self._remembers(action.kind):
            self._staged[BaseKey(action.pass_id.step, action.microbatch, End.RECEIVED)] = payload
        return payload

    def sent(self, action: peer_io.Forward, output: int, seconds: float) -> peer_io.ForwardDone:
        """The activation to send, as a change if there is a base."""
        pass_id, m = action.pass_id, action.microbatch
        if not self._remembers(action.kind):
            return peer_io.ForwardDone(pass_id, m, output, seconds)
        received, key = self.received(pass_id, m), BaseKey(pass_id.step, m, End.SENT)
        if action.encode_with is None:
            self._staged[key] = whole = rounded(output)
            return peer_io.ForwardDone(pass_id, m, whole, seconds, None, received, reconstruction_digest(whole))
        base = self._base(action.encode_with)
        self._staged[key] = whole = rounded_since(output, base)
        digest = reconstruction_digest(whole)
        return peer_io.ForwardDone(pass_id, m, change(whole, base), seconds, whole, received, digest)

    def received(self, pass_id: PassId, m: Microbatch) -> int:
        """Digest of the received activation; 0 if no bases are kept."""
        key = BaseKey(pass_id.step, m, End.RECEIVED)
        return reconstruction_digest(self._staged[key]) if key in self._staged else 0

    def _remembers(self, kind: PassKind) -> bool:
        return kind is PassKind.TRAIN and self._peer.world.visits is not None

    def _base(self, key: BaseKey) -> int:
        if key not in self._kept:
            raise Violation("contract", f"{self._peer.label} needs {key}, which it does not have")
        return self._kept[key]
