"""Views of a RunState: plain dicts of JSON values, one function per page. Pages, command line and API share them.

Times are unix seconds, durations are seconds, steps count from 0. A view contains no ages, so that its readers compute
them.
"""

from peers.fold.views.faults import faults_view
from peers.fold.views.links import links_view
from peers.fold.views.peers import peer_view, peers_view
from peers.fold.views.people import people_view
from peers.fold.views.pipeline import pipeline_view
from peers.fold.views.results import checkpoints_view, samples_view
from peers.fold.views.run import run_view
from peers.fold.views.status import status_view
from peers.fold.views.what_if import what_if

__all__ = [
    "checkpoints_view",
    "faults_view",
    "links_view",
    "peer_view",
    "peers_view",
    "people_view",
    "pipeline_view",
    "run_view",
    "samples_view",
    "status_view",
    "what_if",
]
