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
    "ProcessStarted": "A process is up. `role` is peer or coordinator, `version` the release, `max_rate` its limit.",
    "ProcessStopped": "It leaves on purpose. A log that does not end so belongs to a process that was killed.",
    "MachineMeasured": "What a peer found its machine can do, before it joined; its link is to the coordinator.",
    "CoordinatorStarted": "A coordinator takes `term`; `decided` is the last step in its record, −1 for none.",
    "PeerJoined": "An actor holds a stage (`null`: it stands by). In a peer's own log: its state is loaded.",
    "PeerMoved": "A peer leaves its stage for another one. `gain`, `cost`: microbatches of the swarm, expected.",
    "ManyReplicas": "More replicas are planned than a reduce of this length bears: with `advised` one in ten is "
    "disturbed by a death. Said once; what is planned is not cut.",
    "SeatAsked": "Nobody else can hold `stage`: the process of `actor` is to have `seats` peers.",
    "SeatTaken": "This process takes one more peer on, for the coordinator asks; that one's log is in `home`.",
    "SeatLeft": "A peer that was taken on has ended; the others of its process go on.",
    "PeerLeaving": "An actor was asked to leave: it hands on its work, and goes in `leaves_in_s` at most.",
    "PeerLost": "An actor left or its connection broke.",
    "PeerSeen": "A peer speaks to the coordinator for the first time, and is a member until PeerLost or PeerGone.",
    "PeerGone": "A member left because it was told to.",
    "PeerDescribed": "What a peer says of its machine. Texts are the peer's own.",
    "PeerRefused": "The handshake refused a connection, the `count`-th of this peer (1 to 10, 100, … are logged).",
    "DuplicateIdentity": "Two live processes have one key: a home was copied. The older one leaves.",
    "StepHeldUp": "A peer applied a step late: its copy of the version before was not written yet.",
    "StateFetched": "A whole stage came from another replica or the archive, or from several replicas.",
    "Gathered": "What several peers keep for one who joins or catches up has come: the state of a version, or the sums "
    "of a step. Seconds until the index was known, and for the pieces; bytes by donor.",
    "PieceRefused": "A donor sent a piece, or an index, that is not what the others have. It is not asked again.",
    "SwarmSplit": "The peers of the open step fall into groups of which nobody reaches anybody of another, as when all "
    "are behind home routers. What they have for each other goes through the coordinator.",
    "CatchUpForecast": "A peer takes up a stage while others train. `can`: its link brings the `nbytes` of a step's "
    "sums in less time than a step takes. Said by both sides, where link and step are measured.",
    "CatchUpFailed": "A peer misses the sums of a step for good, and loads a newer version.",
    "PassOpened": "A pass begins: a training step, an evaluation, or a text sample. `replicas` are peers per stage.",
    "StateChanged": "The coordinator's state in one word, with the core's reason. `starting`: it has no members yet.",
    "TableChanged": "Who serves a stage, with the weights by which microbatches are divided, where that has changed.",
    "PassProgress": "Microbatches accumulated, forwarded and in all, by stage, once a heartbeat.",
    "RoundsOtherwise": "This device fails the self-test at the start: the processor makes the optimizer's steps.",
    "PeerWorked": "Where a peer's time went in one pass, with its largest spans, its use of the machine and its links.",
    "PlannerLooked": "The planner's view: rates by stage, the slowest one, and the move it plans, if any.",
    "FaultCosted": "What a disturbed step or evaluation cost: seconds above the usual, tokens, microbatches again.",
    "ControlGiven": "A command of the organiser, recorded durably before it takes effect.",
    "ControlRefused": "A command that cannot be carried out, and why.",
    "MicrobatchForwarded": "A peer has computed the forward of a microbatch.",
    "MicrobatchAccumulated": "Its gradient is in the peer's sum.",
    "ReduceStarted": "Adding up a stage's sums begins, or goes on under a new table: the peer's own microbatches.",
    "ReduceCancelled": "That attempt is void; another follows.",
    "StagePrepared": "A replica holds the whole reduced gradient, with this digest.",
    "StepDecided": "The step's decision is on disk. From here on it happens, whatever dies.",
    "CodecChosen": "What crosses a boundary from `step` on, where `codec` is `auto`. `before` is empty at the start.",
    "StepApplied": "A peer has applied it. `digest` chains all steps so far.",
    "PeerFenced": "An incarnation is out of the open step; its work in it is void and done again.",
    "StageAmended": "A stage has a new table: `moved` microbatches have another owner. `entrant` came in with it.",
    "ShareChanged": "A microbatch takes a replica another time than `before`; its new share of the step that opens.",
    "MicrobatchesReleased": "A slow peer gave up microbatches that it had not accumulated.",
    "FrameRecovered": "The first frame for a microbatch that was moved or asked for again has arrived.",
    "LeadershipTaken": "This coordinator leads its group; `reached` members were heard of lately, itself included.",
    "LeadershipLost": "It leads no more, and why. What it had not decided it will not decide.",
    "LeaderFollowed": "Another coordinator leads. In a peer's log, `ballot` is the term under which it spoke.",
    "MajorityMissing": "Too few coordinators can be reached for anything to be decided.",
    "DecisionRecorded": "A coordinator that does not lead has the decision on its disk.",
    "RouteChanged": "Frames to `other` go through `via`, because the two cannot talk.",
    "StepAborted": "The open step is void and will be run again under a new term.",
    "StepAudited": "A step was computed again by other peers, and came out the same (`agreed`) or each time otherwise.",
    "PeerExpelled": "Out for good: its numbers are not those of its siblings, or the organiser sends it away.",
    "StateDrifted": "Replicas computed a step with unlike states: it is done again, and those in `reload` load anew.",
    "CheckpointsDiffer": "Replicas have saved unlike states of one version: by digest, whose copy it is.",
    "RolledBack": "All stages went back to a checkpoint: a stage's last copy was lost, or the run has diverged.",
    "OutOfMemory": "A peer had no memory for `what`. It gives up all graphs, keeps `now` of them at once instead of "
    "`before`, and does the work again; the second time it leaves (`leaves`).",
    "RunDiverged": "Steps are skipped one after the other, or parameters are not finite. The history goes back to "
    "`version`, with `rate` times the schedule; without a rate the run stops there.",
    "RecordOutdated": "Peers have heard of terms that the decision record does not know: it is an older copy. "
    "`term` is the record's, `next_term` the one that is taken now.",
    "RunPaused": "No step can be opened, and why.",
    "RunFinished": "All steps are decided, applied and archived.",
    "FrameRefused": "A frame that cannot be used, the `count`-th from this sender (1 to 10, 100, … are logged).",
    "StreamBroken": "A stream to another actor broke or cannot be opened. It is opened again while the actor lives.",
    "MessagesDropped": "Messages to `other` were given up: it could not be reached. What matters is asked for again.",
    "ClockDiffers": "This machine's clock is not that of the nodes by which it entered; in the DHT it uses theirs.",
    "CoordinatorAway": "A peer has not reached the coordinator for `seconds`; it leaves in `leaves_in_s` (0: now).",
    "CoordinatorBack": "The coordinator can be reached again, after `seconds`.",
    "CheckpointWritten": "A replica has written its stage to its own disk.",
    "CheckpointArchived": "Every stage of this version is verified in the coordinator's archive.",
    "CheckpointRefused": "A torn or damaged shard. The one before it is used.",
    "Evaluated": "Held-out loss, nats per token, of this version.",
    "EvaluationDropped": "An evaluation, or the sample after it, took too long or failed: the training goes on.",
    "Sampled": "Text generated through the pipeline.",
    "StepMeasured": "Figures of a finished step.",
    "TrafficMeasured": "Bytes by channel since the process started, headers included; bytes a second of links.",
    "ResourcesMeasured": "What a peer has cost its machine so far: CPU seconds, memory, frames kept.",
    "LoopBlocked": "The event loop did not run for so long: the machine is overloaded.",
}


def run_file() -> str:
    lines = [
        "# RUN.toml",
        "",
        "<!-- Written by docs/generate.py. Do not edit. -->",
        "",
        "A run is a file. `swarm-peer init` writes one with every key and its meaning; `swarm-peer coordinate",
        "--dry-run` shows what it comes to: manifest, run hash, memory and bytes per link. Keys that are left out have",
        "the default. Unknown keys are errors that name the nearest known one. `--set table.key=value` overrides a key",
        "for one call; since the run hash covers every key but `data.directory` and `initial.directory`, give the same",
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
        "Each process appends every fact worth knowing to `events.jsonl` in its home: one JSON object a line, with",
        "`at` (Unix seconds), `kind` and the fields below. `swarm-peer events HOME` reads them as sentences,",
        "`--follow` as they come, `--kind` picks some, `--json` leaves them as they are.",
        "",
        "An actor is written as the last six characters of its peer id, a dot, and its incarnation; a pass as",
        "`term:step`, with `+1`, `+2`, … for evaluations and samples after that step; a reduce as `pass/sSTAGEnTABLE`.",
        "In names of passes, fields and JSON, steps, stages and microbatches count from 0; in sentences steps from 1.",
        "A version is a number of applied steps.",
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
