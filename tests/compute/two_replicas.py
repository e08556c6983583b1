"""Two replicas of a stage that reduce in one process."""

from swarm.compute.reduction import Buckets, Reduction
from swarm.protocol.ids import Attempt, PassId, StageIndex, StepNumber, Term
from swarm.protocol.peer.io import EncodePart, SumBucket

ATTEMPT = Attempt(PassId(Term(0), StepNumber(0)), StageIndex(0), 0)


def crossed(shares, sums, coming: bool):
    """All that two replicas send each other, and both: what each orders is known to it beforehand if `coming`."""
    layout = shares[0].layout
    one, other = (Reduction(share, Buckets(layout, sums), sums) for share in shares)
    buckets = range(Buckets(layout, sums).count)
    orders = [EncodePart(ATTEMPT, bucket) for bucket in buckets]
    if coming:
        other.coming = lambda: tuple(orders)
    parts = []
    while orders:
        parts.append(bytes(other.part(orders.pop(0))))
    totals = [SumBucket(ATTEMPT, bucket, (part,)) for bucket, part in zip(buckets, parts, strict=True)]
    if coming:
        one.coming = lambda: tuple(totals)
    found = []
    while totals:
        found.append(bytes(one.sum(totals.pop(0))))
    for replica in (one, other):
        for bucket, total in enumerate(found):
            replica.store(ATTEMPT, bucket, total)
    return parts + found, one, other
