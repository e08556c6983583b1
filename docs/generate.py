"""Writes docs/run-file.md and docs/events.md from the code they describe: `python docs/generate.py`.

A test holds the files to what this writes, so that they cannot go stale.
"""

from __future__ import annotations

import dataclasses
import types
from pathlib import Path
from typing import Any, get_type_hints

from peers.run_toml import MEANINGS, TABLES
from swarm.events import Event
from swarm.manifest import RunFile

HERE = Path(__file__).parent

EVENTS: dict[str, str] = {
    "ProcessStarted": "A process started. `role` is peer or coordinator, `version` the release, `max_rate` its limit.",
    "ProcessStopped": "A process ends on purpose. If a log ends without this event, the process was killed.",
    "MachineMeasured": "What a peer measured on its machine before it joined. The link is to the coordinator.",
    "CoordinatorStarted": "A coordinator starts `term`. `decided` is the last step in its record, −1 for none.",
    "PeerJoined": "An actor holds a stage (`null`: it stands by). In a peer's own log: its state is loaded.",
    "PeerMoved": "A peer leaves its stage for another one. `gain` and `cost` are expected microbatches of the swarm.",
    "ManyReplicas": "More replicas are planned than is advisable for a reduce of this length. With `advised` "
    "replicas, a death disturbs one reduce in ten. Logged once; the plan is not changed.",
    "SeatAsked": "No other peer can hold `stage`: the process of `actor` is asked to have `seats` peers.",
    "SeatTaken": "This process starts one more peer because the coordinator asked for it. That peer's log is in "
    "`home`.",
    "SeatLeft": "An additional peer has ended. The other peers of its process continue.",
    "PeerLeaving": "An actor was asked to leave. It hands on its work and leaves in `leaves_in_s` at most.",
    "PeerLost": "An actor left or its connection broke.",
    "PeerSeen": "The coordinator hears a peer for the first time. The peer is a member until PeerLost or PeerGone.",
    "PeerGone": "A member left because it was told to.",
    "PeerDescribed": "What a peer reports about its machine. The texts are the peer's own.",
    "PeerRefused": "The handshake refused a connection, the `count`-th of this peer (1 to 10, 100, … are logged).",
    "DuplicateIdentity": "Two live processes have one key: a home was copied. The older one leaves.",
    "StateFetched": "A whole stage was fetched from another replica, from several replicas or from the archive.",
    "Gathered": "A peer that joins or catches up has fetched from several peers the state of a version or the sums "
    "of a step. Seconds until the index was known, and for the pieces; bytes by donor.",
    "PieceRefused": "A donor sent a piece or an index that differs from the others'. It is not asked again.",
    "SwarmSplit": "The peers of the open step form groups that cannot reach each other, as when all are behind home "
    "routers. The coordinator relays between them.",
    "CatchUpForecast": "A peer takes a stage while others train. `can`: its link brings the `nbytes` of a step's "
    "sums in less time than a step takes. Both sides log this, where link and step are measured.",
    "CatchUpFailed": "A peer can no longer get the sums of a step, and loads a newer version.",
    "PassOpened": "A pass begins: a training step, an evaluation or a text sample. `replicas` are peers per stage.",
    "StateChanged": "The coordinator's state in one word, with the core's reason. `starting`: it has no members yet.",
    "TableChanged": "Which peers serve a stage, and the weights that divide the microbatches, where these have "
    "changed.",
    "PassProgress": "Microbatches accumulated, forwarded and in all, by stage, once per heartbeat.",
    "RoundsOtherwise": "This device fails the self-test at the start, so the CPU computes the optimizer's steps.",
    "PeerWorked": "How a peer spent its time in one pass, with its largest spans, its use of the machine and its "
    "links.",
    "PlannerLooked": "The planner's view: rates by stage, the slowest stage, and the planned move, if any.",
    "FaultCosted": "The cost of a disturbed step or evaluation: seconds above the usual, tokens, repeated "
    "microbatches.",
    "ControlGiven": "A command of the organiser, recorded durably before it takes effect.",
    "ControlRefused": "A command that cannot be carried out, and why.",
    "MicrobatchForwarded": "A peer has computed the forward of a microbatch.",
    "MicrobatchAccumulated": "The gradient of a microbatch is in the peer's sum.",
    "ReduceStarted": "A stage starts to add up its sums, or continues under a new table. `microbatches` are the "
    "peer's own.",
    "ReduceCancelled": "This attempt is void. Another one follows.",
    "StagePrepared": "A replica holds the whole reduced gradient, with this digest.",
    "StepDecided": "The step's decision is on disk. From now on the step is certain, whatever dies.",
    "CodecChosen": "The codec of a boundary from `step` on, where `codec` is `auto`. `before` is empty at the start.",
    "StepApplied": "A peer has applied the step. `digest` chains all steps so far.",
    "PeerFenced": "An incarnation is excluded from the open step. Its work in the step is void and is repeated.",
    "StageAmended": "A stage has a new table: the `moved` microbatches have another owner. `entrant` joined with "
    "this table.",
    "ShareChanged": "A microbatch takes a replica longer or shorter than `before`. Its new share of the step that "
    "opens.",
    "MicrobatchesReleased": "A slow peer gave up microbatches that it had not accumulated.",
    "FrameRecovered": "The first frame of a moved or requested microbatch has arrived.",
    "LeadershipTaken": "This coordinator leads its group. It heard from `reached` members recently, itself included.",
    "LeadershipLost": "This coordinator leads no more, and why. It will not decide what it has not decided yet.",
    "LeaderFollowed": "Another coordinator leads. In a peer's log, `ballot` is the leader's term.",
    "MajorityMissing": "Too few coordinators can be reached to decide anything.",
    "DecisionRecorded": "A coordinator that does not lead has the decision on its disk.",
    "RouteChanged": "Frames to `other` go through `via`, because the two peers cannot talk directly.",
    "StepAborted": "The open step is void and is repeated under a new term.",
    "StepAudited": "Other peers computed a step again. `agreed`: with the same result; otherwise it differed each "
    "time.",
    "PeerExpelled": "A peer is excluded for good: its numbers differ from its siblings', or the organiser expels it.",
    "StateDrifted": "Replicas computed a step with different states. The step is repeated, and the peers in `reload` "
    "load the state again.",
    "CheckpointsDiffer": "Replicas have saved different states of one version: by digest, the peers that hold it.",
    "RolledBack": "All stages went back to a checkpoint: the last copy of a stage was lost, or the run has diverged.",
    "OutOfMemory": "A peer had no memory for `what`. It drops all graphs, keeps `now` of them at once instead of "
    "`before`, and repeats the work. The second time it leaves (`leaves`).",
    "RunDiverged": "Steps are skipped in a row, or parameters are not finite. The run goes back to `version`, with "
    "`rate` times the schedule. Without a rate the run stops there.",
    "RecordOutdated": "Peers know terms that the decision record does not contain: it is an older copy. `term` is "
    "the record's, `next_term` the one that the coordinator takes now.",
    "RunPaused": "No step can be opened, and why.",
    "RunFinished": "All steps are decided, applied and archived.",
    "FrameRefused": "A frame that cannot be used, the `count`-th from this sender (1 to 10, 100, … are logged).",
    "StreamBroken": "A stream to another actor broke or cannot be opened. It is reopened as long as the actor lives.",
    "MessagesDropped": "Messages to `other` were dropped because it was unreachable. Important ones are requested "
    "again.",
    "ClockDiffers": "This machine's clock differs from that of its entry nodes. In the DHT it uses their time.",
    "CoordinatorAway": "A peer has not reached the coordinator for `seconds`. It leaves in `leaves_in_s` (0: now).",
    "CoordinatorBack": "The coordinator is reachable again, after `seconds`.",
    "CheckpointWritten": "A replica has written its stage to its own disk.",
    "CheckpointArchived": "Every stage of this version is verified in the coordinator's archive.",
    "CheckpointRefused": "A shard is torn or damaged. The checkpoint before it is used.",
    "Evaluated": "Held-out loss of this version, in nats per token.",
    "EvaluationDropped": "An evaluation, or the sample after it, took too long or failed. Training continues.",
    "Sampled": "Text generated through the pipeline.",
    "StepMeasured": "Figures of a finished step.",
    "TrafficMeasured": "Bytes by channel since the process started, headers included; bytes per second of links.",
    "ResourcesMeasured": "What a peer has used of its machine so far: CPU seconds, memory, frames kept.",
    "LoopBlocked": "The event loop did not run for this long: the machine is overloaded.",
}


def run_file() -> str:
    lines = [
        "# RUN.toml",
        "",
        "<!-- Written by docs/generate.py. Do not edit. -->",
        "",
        "This file describes a run. `swarm-peer init` writes it with every key and its meaning. `swarm-peer coordinate",
        "--dry-run` shows the result: manifest, run hash, memory and bytes per link. A key that is left out has its",
        "default. An unknown key is an error that names the nearest known key. `--set table.key=value` overrides a key",
        "for one call. The run hash covers every key except `data.directory` and `initial.directory`, so give the same",
        "overrides to `coordinate` and `reference`.",
    ]
    for table, section in RunFile().model_dump(mode="json").items():
        lines += ["", f"## [{table}]", "", TABLES[table], "", "| key | default | meaning |", "|---|---|---|"]
        lines += [f"| `{key}` | `{_toml(value)}` | {MEANINGS[f'{table}.{key}']} |" for key, value in section.items()]
    return "\n".join(lines) + "\n"


def events() -> str:
    lines = [
        "# Events",
        "",
        "<!-- Written by docs/generate.py. Do not edit. -->",
        "",
        "Each process appends its events to `events.jsonl` in its home: one JSON object per line, with `at` (Unix",
        "seconds), `kind` and the fields below. `swarm-peer events HOME` prints them as sentences. `--follow` prints",
        "new events as they come, `--kind` selects kinds, `--json` prints the objects unchanged.",
        "",
        "An actor is written as the last six characters of its peer id, a dot, and its incarnation. A pass is written",
        "as `term:step`; `+1`, `+2`, … mark evaluations and samples after that step. A reduce is `pass/sSTAGEnTABLE`.",
        "In names of passes, fields and JSON, steps, stages and microbatches count from 0. In sentences, steps count",
        "from 1. A version is a number of applied steps.",
        "",
        "| kind | fields | meaning |",
        "|---|---|---|",
    ]
    # a dict, because a slotted dataclass leaves its unslotted twin behind
    for cls in {cls.__name__: cls for cls in Event.__subclasses__()}.values():
        hints = get_type_hints(cls)
        fields = ", ".join(f"`{field.name}` {_type(hints[field.name])}" for field in dataclasses.fields(cls))
        lines.append(f"| `{cls.__name__}` | {fields} | {EVENTS[cls.__name__]} |")
    return "\n".join(lines) + "\n"


PAGES = {"run-file.md": run_file, "events.md": events}


def _type(hint: Any) -> str:
    if isinstance(hint, types.UnionType):
        return " or ".join("null" if part is type(None) else _type(part) for part in hint.__args__)
    names = {str: "text", int: "integer", float: "number", bool: "true or false"}
    if hint in names:
        return names[hint]
    inner = [_type(part) for part in hint.__args__]
    return f"list of {inner[0]}" if hint.__origin__ is list else f"{inner[0]} to {inner[1]}"


def _toml(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value).replace("True", "true").replace("False", "false")


if __name__ == "__main__":
    for name, page in PAGES.items():
        (HERE / name).write_text(page(), encoding="utf-8")
