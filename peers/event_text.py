"""Events in words: one line a person can read for each kind, with the reason if there is one."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from swarm import events as e


def describe(event: e.Event) -> str:
    """One line, without time or line breaks, and printable: whoever sent a part of it."""
    return printable(_describe(event))


def printable(text: str) -> str:
    """`text` in one line, with U+FFFD for all that is no letter, sign or space.

    Terminals obey some of that (titles, colours, the order of reading), and halves of characters cannot be printed.
    """
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in " ".join(text.split()))


def step_line(decided: e.StepDecided, measured: e.StepMeasured | None, steps: int | None = None) -> str:
    """The line of a step. `steps`: how many the run has; steps count from 1 here, as people do."""
    of = f"/{steps}" if steps is not None else ""
    parts = [f"step {decided.step + 1}{of}", f"loss {decided.loss:.4f}", f"norm {decided.gradient_norm:.3g}"]
    if decided.key_frames:
        parts.append(f"key frames {sum(int(bits, 16).bit_count() for bits in decided.key_frames)}")
    if measured is not None:
        parts += [
            f"{measured.tokens_per_second:,.0f} tok/s",
            f"efficiency {measured.efficiency:.2f}",
            f"peers {replicas(measured.replicas)}",
        ]
    if decided.scale == 0.0:
        parts.append("SKIPPED: non-finite gradient")
    if decided.leader:
        parts.append(f"leader {decided.leader}")
    if decided.without:
        parts.append(f"without {printable(', '.join(decided.without))}, lost after the others were prepared")
    return "  ".join(parts)


def replicas(counts: Sequence[int]) -> str:
    """Peers per stage, such as 2·2·1·2."""
    return "·".join(map(str, counts))


def amount(nbytes: float) -> str:
    """Bytes as people read them: 1.5 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(nbytes) < 1000:
            return f"{nbytes:.0f} {unit}" if unit == "B" or abs(nbytes) >= 100 else f"{nbytes:.1f} {unit}"
        nbytes /= 1000
    return f"{nbytes:.1f} TB"


def rate(bytes_per_s: float) -> str:
    """A link speed as providers write it: 20 Mbit/s."""
    return f"{amount(8 * bytes_per_s)[:-1]}bit/s"


def _describe(event: e.Event) -> str:
    match event:
        case e.ProcessStarted():
            limit = "" if event.max_rate is None else f", sends at most {rate(event.max_rate)}"
            return f"{event.role} {event.actor} started, release {event.version}, run {event.run[:16]}{limit}"
        case e.ProcessStopped():
            return f"stopped: {event.reason}"
        case e.MachineMeasured():
            return _machine(event)
        case e.CoordinatorStarted():
            found = f"step {event.decided + 1} is decided" if event.decided >= 0 else "a fresh run"
            return f"coordinator takes term {event.term}: {found}"
        case e.PeerJoined():
            return f"{event.actor} joined {_stage(event.stage)}: {event.reason}"
        case e.PeerMoved():
            return f"{event.actor} moves from stage {event.source} to {event.stage}: {event.reason}"
        case e.ManyReplicas():
            return (
                f"swarm.replicas = {event.planned} is many: a reduce takes {event.reduce_s:.3g} s and a peer leaves "
                f"{event.departures_per_hour:.2g} times an hour, so somebody dies in more than one reduce in ten. "
                f"{event.advised} replicas of more stages would be better, or compressed sums (sums.averaging)"
            )
        case e.SeatAsked():
            return f"stage {event.stage} has no peer: {event.actor} is asked to have {event.seats} in its process"
        case e.SeatTaken():
            return f"takes seat {event.seat} ({event.reason}); its home is {event.home}"
        case e.SeatLeft():
            return f"seat {event.seat} is free again: {event.reason}"
        case e.PeerLeaving():
            at_most = f"within {event.leaves_in_s:.0f} s"
            return f"{event.actor} of {_stage(event.stage)} is leaving ({event.reason}): it goes {at_most}"
        case e.PeerLost():
            return f"{event.actor} of {_stage(event.stage)} is lost: {event.reason}"
        case e.PeerSeen():
            return f"{event.actor} presents itself"
        case e.PeerGone():
            return f"{event.actor} has left: {event.reason}"
        case e.PeerDescribed():
            return f"{event.actor} runs on {', '.join(f'{key} {value}' for key, value in event.machine.items())}"
        case e.PeerRefused():
            return f"{event.peer} was refused ({event.count} so far): {event.reason}"
        case e.DuplicateIdentity():
            return (
                f"two processes have one key: {event.older}, which has to leave, and {event.newer or 'a newer one'}. "
                "If a home was copied to another machine, delete identity.key in the copy, or join there with a new "
                "one: swarm-peer join --home OTHER"
            )
        case e.Gathered():
            seconds = event.index_s + event.pieces_s
            size = f"{amount(event.nbytes)} ({amount(event.received)} on the line)"
            return f"stage {event.stage}: {event.what} from {len(event.by_donor)} peers: {size} in {seconds:.1f} s"
        case e.PieceRefused():
            return f"{event.donor} is not asked again: {event.reason}"
        case e.SwarmSplit(groups):
            between = " and ".join(", ".join(group) for group in groups)
            return (
                f"nobody of {between} reaches one of the others: what they have for each other goes through the "
                "coordinator. One peer that all reach would do: a public address, or a forwarded port and --announce"
            )
        case e.CatchUpForecast():
            sums = (
                f"the sums of a step of stage {event.stage}, {amount(event.nbytes)}, take its link {event.sums_s:.2g} s"
            )
            step = f"a step takes {event.step_s:.2g} s"
            if event.can:
                return f"{event.actor} can catch up: {sums}, and {step}"
            return (
                f"{event.actor} cannot catch up: {sums}, and {step}. It needs a faster link; or the run needs longer "
                "steps (batch.microbatches) or compressed averaging (sums.averaging)"
            )
        case e.CatchUpFailed():
            return f"{_stage(event.stage)} cannot be caught up over step {event.step}: {event.reason}; starts again"
        case e.StateFetched():
            size = amount(event.nbytes)
            return (
                f"stage {event.stage} at version {event.version} from {event.source}: {size} in {event.seconds:.1f} s"
            )
        case e.PassOpened():
            return f"{event.pass_kind} {event.pass_id} opened, peers {replicas(event.replicas)}"
        case e.StateChanged():
            return f"{event.state}: {event.reason}" if event.reason else event.state
        case e.TableChanged():
            shares = ", ".join(f"{a} ×{w:g}" for a, w in zip(event.roster, event.weights, strict=False))
            return f"stage {event.stage} is served by {shares or 'nobody'}: {event.reason}"
        case e.PassProgress():
            done = ", ".join(f"stage {s}: {a} of {m}" for s, (a, _, m) in enumerate(event.stages))
            return f"{event.pass_id}: microbatches accumulated: {done}"
        case e.PeerWorked():
            spent = ", ".join(f"{kind} {seconds:.2f} s" for kind, seconds in event.seconds.items())
            return f"{event.actor} of stage {event.stage} in pass {event.pass_id}: {spent}"
        case e.PlannerLooked():
            return f"planner: {event.reason}"
        case e.FaultCosted():
            again = f"{event.microbatches} microbatches done again"
            return (
                f"step {event.step + 1} lost {event.seconds:.2f} s ({event.tokens:,} tokens): {event.reason}, {again}"
            )
        case e.MicrobatchForwarded():
            return f"{event.pass_id}: microbatch {event.microbatch} forwarded"
        case e.MicrobatchAccumulated():
            return f"{event.pass_id}: microbatch {event.microbatch} accumulated"
        case e.ReduceStarted():
            return f"{event.attempt}: reduce of {_microbatches(event.microbatches)} started"
        case e.ReduceCancelled():
            return f"{event.attempt}: reduce cancelled: {event.reason}"
        case e.StagePrepared():
            return f"{event.attempt}: prepared, digest {event.digest[:16]}"
        case e.StepDecided():
            return step_line(event, None)
        case e.CodecChosen():
            arrow = "→" if event.direction == "forward" else "←"
            what = f"{event.codec} instead of {event.before}" if event.before else event.codec
            where = f"stages {event.boundary - 1} {arrow} {event.boundary}"
            return f"{where}: {what} from step {event.step + 1} on: {event.reason}"
        case e.StepApplied():
            return f"step {event.step + 1} applied, digest {event.digest[:16]}"
        case e.PeerFenced():
            return (
                f"{event.actor} of stage {event.stage} is fenced: {event.reason}; to do again: "
                f"{len(event.finished)} finished and {len(event.unfinished)} unfinished microbatches"
            )
        case e.StageAmended():
            moved = _microbatches(event.moved)
            return f"stage {event.stage} has table {event.number}, {moved} moved: {event.reason}"
        case e.ShareChanged():
            share = f"has {event.microbatches} microbatches of stage {event.stage} now"
            return f"{event.actor} {share}: one takes it {event.seconds:.3g} s, and {event.before:.3g} before"
        case e.MicrobatchesReleased():
            return f"{event.actor} gave up {_microbatches(event.microbatches)}"
        case e.FrameRecovered():
            return f"recovered {event.key} from {event.source}"
        case e.RouteChanged():
            return f"{event.other} is reached through {event.via}: {event.reason}"
        case e.StepAborted():
            return f"{event.pass_id} aborted, term {event.term}: {event.reason}"
        case e.StepAudited():
            outcome = "and came out the same" if event.agreed else "came out otherwise each time, and nobody was found"
            return f"step {event.step} was computed again by other peers {outcome}"
        case e.RoundsOtherwise():
            return f"{event.device} rounds otherwise than others do: optimizer steps are made on the processor instead"
        case e.PeerExpelled():
            return f"{event.actor} is expelled from the run: at step {event.step} {event.reason}"
        case e.StateDrifted():
            others = ", ".join(event.reload)
            what = f"step {event.step + 1}: {others} held another state of stage {event.stage} than its siblings"
            return f"{what}, and loads theirs; the step is done again: {event.reason}"
        case e.CheckpointsDiffer():
            copies = "; ".join(f"{digest[:16]} of {', '.join(whose)}" for digest, whose in event.copies.items())
            return f"checkpoint {event.version} of stage {event.stage} differs among its replicas: {copies}"
        case e.RolledBack():
            return f"rolled back to version {event.version}, term {event.term}: {event.reason}"
        case e.RunDiverged():
            where = f"version {event.version}, the newest checkpoint that is good"
            if event.rate is None:
                return f"the run has diverged: {event.reason}; it stops, and {where}, is kept"
            return f"the run has diverged: {event.reason}; it goes back to {where}, with {event.rate:g} times the rate"
        case e.StepHeldUp():
            return (
                f"the step after version {event.version} of stage {event.stage} waited {event.seconds:.1f} s until "
                "that version was copied: the disk of this peer's home is slow"
            )
        case e.OutOfMemory():
            if event.leaves:
                return f"{event.actor} is out of memory again, and leaves: {event.what}"
            less = f"keeps {event.now} graphs instead of {event.before} from now on"
            return f"{event.actor} is out of memory: {event.what}; it {less}, and does the work again"
        case e.RecordOutdated():
            return (
                f"peers have heard of later terms than {event.term}, the last one in the decision record: it is an "
                f"older copy, and what was decided since is done again. The run goes on in term {event.next_term}"
            )
        case e.RunPaused():
            return f"no step can start: {event.reason}"
        case e.RunFinished():
            return f"finished after step {event.step + 1}: {event.reason}"
        case e.ControlGiven():
            what = f"{event.command} {event.value}".strip()
            return f"command {event.number}, {what}, given by {event.by}" + (f": {event.why}" if event.why else "")
        case e.ControlRefused():
            return f"command {f'{event.command} {event.value}'.strip()} of {event.by} refused: {event.reason}"
        case e.FrameRefused():
            return f"frame of {event.sender} refused ({event.count} so far): {event.reason}"
        case e.StreamBroken():
            return f"{event.channel} stream to {event.other} broke: {event.reason}"
        case e.MessagesDropped():
            return f"{event.count} messages to {event.other} were dropped: {event.reason}"
        case e.ClockDiffers():
            way = "slow" if event.ahead_s > 0 else "fast"
            return f"this machine's clock is {abs(event.ahead_s):.0f} s {way}; the address book uses that of the others"
        case e.CoordinatorAway():
            away = f"the coordinator has been out of reach for {event.seconds:.0f} s ({event.reason})"
            if not event.leaves_in_s:
                return f"{away}: this peer has waited long enough and leaves"
            return f"{away}: this peer keeps its state and dials on; it leaves in {event.leaves_in_s:.0f} s"
        case e.CoordinatorBack():
            return f"the coordinator is back after {event.seconds:.0f} s"
        case e.LeadershipTaken():
            reached = f"{event.reached} of {event.members} coordinators can be reached"
            return f"{event.actor}, this coordinator, leads under ballot {event.ballot}: {reached}"
        case e.LeadershipLost():
            return f"this coordinator leads no more: {event.reason}"
        case e.LeaderFollowed():
            return f"coordinator {event.leader} leads now"
        case e.MajorityMissing():
            return f"nothing can be decided: {event.reason}"
        case e.DecisionRecorded():
            by = f" by {event.leader}" if event.leader else ""
            return f"step {event.step + 1} is decided{by}, and recorded here too"
        case e.CheckpointWritten():
            size = amount(event.nbytes)
            return f"checkpoint of stage {event.stage} at version {event.version} written: {size}, {event.digest[:16]}"
        case e.CheckpointArchived():
            return f"checkpoint {event.version} is complete in the archive ({len(event.digests)} stages)"
        case e.CheckpointRefused():
            return f"checkpoint {event.path} refused: {event.reason}"
        case e.Evaluated():
            return f"held-out loss {event.loss:.4f} at version {event.version} ({event.targets:,} predictions)"
        case e.EvaluationDropped():
            late = f"; {', '.join(event.who)} had work at hand" if event.who else ""
            return f"the evaluation of version {event.version} is given up, training goes on: {event.reason}{late}"
        case e.Sampled():
            return f"sample at version {event.version}: {event.prompt}{event.text}"
        case e.StepMeasured():
            return (
                f"step {event.step + 1} took {event.seconds:.2f} s, {event.tokens_per_second:,.0f} tok/s, "
                f"efficiency {event.efficiency:.2f}, peers {replicas(event.replicas)}"
            )
        case e.ResourcesMeasured():
            cpu = f"{event.cpu_seconds:.1f} s of CPU, daemon {event.daemon_cpu_seconds:.1f} s"
            memory = f"{amount(event.resident_bytes)} resident, peak {amount(event.peak_resident_bytes)}"
            kept = f"kept frames peak {amount(event.peak_retained_bytes)}"
            return f"version {event.version}: {cpu}; {memory}; {kept}; {event.tasks} tasks"
        case e.TrafficMeasured():
            links = ", ".join(f"{amount(bytes_per_s)}/s from {sender}" for sender, bytes_per_s in event.links.items())
            total = f"sent {amount(sum(event.sent.values()))}, received {amount(sum(event.received.values()))}"
            return f"{total}; links: {links}" if links else total
        case e.LoopBlocked():
            return f"the event loop was blocked for {event.seconds:.2f} s"
    # Kinds added later are still readable, if not prose.
    fields = ", ".join(f"{name} {value}" for name, value in dataclasses.asdict(event).items())
    return f"{event.kind}: {fields}"


def _machine(event: e.MachineMeasured) -> str:
    layer = ""
    if event.forward_s is not None and event.backward_s is not None:
        layer = f" (one layer {1000 * event.forward_s:.3g} + {1000 * event.backward_s:.3g} ms"
        layer += ", measured earlier)" if event.kept else ")"
    links = [
        f"{what} {rate(r)}" for what, r in (("sends", event.uplink), ("receives", event.downlink)) if r is not None
    ]
    link = "; ".join(links) if links else "link not measured"
    speed = f"{event.capacity:.3g} microbatches/s of the whole model{layer}"
    return f"this machine, {event.device}: {speed}; {amount(event.memory)} of memory to plan with; {link}"


def _stage(stage: int | None) -> str:
    return "the standbys" if stage is None else f"stage {stage}"


def _microbatches(numbers: Sequence[int]) -> str:
    """Microbatches 0–3, 7: sorted, runs joined."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    listed = ", ".join(str(a) if a == b else f"{a}–{b}" for a, b in runs) or "none"
    return f"microbatch {listed}" if len(numbers) == 1 else f"microbatches {listed}"
