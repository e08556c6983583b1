"""The state of a run at an instant, computed from the events up to that instant (a *fold* over the events).

`apply(state, event, at, source)` changes a `RunState`; `peers.fold.views` show it as plain dicts. The dashboard, the
JSON API, `swarm-peer status`, the metrics and the report are all based on it: live, in a replay and for a finished run.
The result depends on the events alone. This package reads no file, clock or random number and imports no torch, and its
memory is bounded for any events.
"""

from peers.fold.apply import apply, apply_record
from peers.fold.facts import RunFacts
from peers.fold.state import RunState

__all__ = ["RunFacts", "RunState", "apply", "apply_record"]
