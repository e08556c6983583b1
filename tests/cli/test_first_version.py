"""Version 0 of a run from imported parameters: in the archive, at the reference, and nothing else on any peer."""

from __future__ import annotations

import io
from collections.abc import AsyncGenerator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from peers.run.first_version import archive_first, first_digests, first_states
from peers.run.reference import train_reference
from peers.runtime.piece_request import PieceRequest
from peers.stage.keeper import Keeper
from swarm.compute.digest import first_chain
from swarm.compute.optimizer import StageState
from swarm.events import StateFetched
from swarm.manifest import (
    DataSection,
    InitialSection,
    ManifestError,
    ModelSection,
    RunFile,
    RunManifest,
    Shard,
    explain,
)
from swarm.models.kinds import build_stage
from swarm.protocol.ids import Actor, StageIndex
from swarm.protocol.messages import Donor
from swarm.protocol.peer.io import LoadState, PeerInput
from swarm.state.archive import Archive
from swarm.state.error import StateError
from swarm.state.initial import InitialParameters, LazyTensor, write_initial
from swarm.state.layout import ShardMeta
from swarm.state.packed import framed
from swarm.state.pieces import PIECE_BYTES, Index
from swarm.state.transfer import TransferHeader, iter_chunks, iter_file_chunks

MODEL = ModelSection(vocab_size=64, dim=16, layers=2, heads=2, kv_heads=1, ffn_dim=24, context=16, cuts=(1,))
SHARD = Shard(file="train.bin", sha256="0" * 64, tokens=100_000)
DATA = DataSection(
    tokenizer_sha256="1" * 64, vocab_size=64, train=(SHARD,), heldout=(SHARD,), unigram_entropy=4.0, bytes_per_token=3.5
)
COORDINATOR = Actor("coordinator", 0)


@pytest.fixture
def initial(tmp_path: Path) -> tuple[RunManifest, InitialParameters]:
    values = {n: p.detach() for s in range(2) for n, p in build_stage(MODEL, s, seed=9).named_parameters()}
    lazy = {n: LazyTensor(tuple(value.shape), lambda value=value: value) for n, value in values.items()}
    sha256 = write_initial(tmp_path / "parameters", lazy)
    parameters = InitialParameters(tmp_path / "parameters", MODEL, sha256)
    batch = {"microbatches": 2, "sequences": 1, "sequence_length": 8}
    run = RunFile.model_validate({"model": MODEL, "batch": batch, "initial": {"sha256": sha256}})
    return run.resolve(DATA, first_digests(parameters, MODEL)), parameters


def archive_of(manifest: RunManifest, folder: Path, keep: int = 1) -> Archive:
    return Archive(folder, manifest.hash, 2, keep, keep_first=True)


def test_the_archive_holds_version_0_as_any_other_and_for_good(
    initial: tuple[RunManifest, InitialParameters], tmp_path: Path
) -> None:
    manifest, parameters = initial
    archive = archive_of(manifest, tmp_path / "archive")
    archive_first(archive, parameters, manifest)
    assert archive.newest() == 0
    for stage, state in enumerate(first_states(parameters, manifest)):
        shard = archive.open_shard(stage, 0)
        assert (shard.meta.digest, shard.meta.chain) == (manifest.initial.digests[stage], first_chain(manifest, stage))
        assert state.digest() == shard.meta.digest
        assert shard.tensors.keys() == state.tensors.keys()
        assert all(torch.equal(shard.tensors[name], tensor) for name, tensor in state.tensors.items())
        assert not any(tensor.any() for kind in ("exp_avg", "exp_avg_sq") for tensor in shard.of_kind(kind).values())
    for version in (1, 2, 3):
        store(archive, manifest, version, parameters)
    assert archive.complete_versions() == [0, 3]


def test_the_manifest_names_imported_parameters_for_each_stage(initial: tuple[RunManifest, InitialParameters]) -> None:
    manifest, _ = initial
    assert RunManifest.from_canonical(manifest.canonical()) == manifest
    tree = manifest.model_dump()
    for digests in ((), manifest.initial.digests[:1]):
        tree["initial"] = InitialSection(sha256=manifest.initial.sha256, digests=digests)
        with pytest.raises(ValueError, match=f"initial.digests names {len(digests)} states for 2 stages"):
            RunManifest.model_validate(tree)
    seeded = manifest.model_copy(update={"initial": InitialSection()})
    assert RunManifest.from_canonical(seeded.canonical()) == seeded
    other = RunFile.model_validate({"model": MODEL, "batch": manifest.batch, "initial": {"sha256": "ab" * 32}})
    assert other.resolve(DATA, manifest.initial.digests).hash != manifest.hash
    with pytest.raises(ManifestError, match=r"initial.digests names 0 states"):
        other.resolve(DATA)
    narrow = {**MODEL.model_dump(), "boundary": "bottleneck", "boundary_dim": 4}
    with pytest.raises(ValueError, match=r'model.boundary = "bottleneck": leave this out') as caught:
        RunFile.model_validate({"model": narrow, "batch": manifest.batch, "initial": {"sha256": "ab" * 32}})
    assert "initial.sha256 = abababababababab" in explain(caught.value)


def test_the_reference_begins_with_them_or_not_at_all(initial: tuple[RunManifest, InitialParameters]) -> None:
    manifest, parameters = initial
    states = list(first_states(parameters, manifest))

    class Data:
        def microbatch(self, step: int, m: int, /) -> Any:
            return torch.arange(9).view(1, 9).numpy() + m

    assert train_reference(manifest, Data(), stop_after=0, state=states).digests == manifest.initial.digests
    trained = train_reference(manifest, Data(), stop_after=1, state=states)
    assert trained.digests != manifest.initial.digests
    again = list(first_states(parameters, manifest))
    assert train_reference(manifest, Data(), stop_after=1, state=again).digests == trained.digests, (
        "the file is as it was"
    )
    with pytest.raises(AssertionError, match="version 0 is imported"):
        train_reference(manifest, Data(), stop_after=1)


class State:
    """Takes up whatever it is given."""

    version: int | None = None

    def __init__(self) -> None:
        self.given: StageState | None = None

    def initialise(self) -> Future[None]:
        raise AssertionError("nothing is initialised in a run from imported parameters")

    def prepare(self) -> None:
        pass

    def load(self, state: StageState) -> Future[None]:
        self.given = state
        future: Future[None] = Future()
        future.set_result(None)
        return future


async def test_a_peer_takes_up_version_0_and_nothing_else_as_version_0(
    initial: tuple[RunManifest, InitialParameters], tmp_path: Path
) -> None:
    manifest, parameters = initial
    archive = archive_of(manifest, tmp_path / "archive")
    archive_first(archive, parameters, manifest)
    sent: dict[Actor, bytes] = {}
    for number, (chain, factor) in enumerate(((first_chain(manifest, 0), 1.5), ("ab" * 32, 1.0))):
        state = next(first_states(parameters, manifest))
        tensors = {name: tensor * factor for name, tensor in state.tensors.items()}
        digest = StageState(0, 0, chain, tensors).digest()
        meta = ShardMeta(manifest.hash, 0, 0, 0, chain, digest)
        sent[Actor("liar", number)] = b"".join(list(iter_chunks(tensors, meta))[1:])

    async def fetch(source: Actor, request: bytes, size: int) -> AsyncGenerator[bytes, None]:
        async def chunks() -> AsyncGenerator[bytes, None]:
            if source == COORDINATOR:
                for chunk in iter_file_chunks(archive.checkpoint(0, 0), manifest.hash):
                    yield chunk
                return
            asked, state = PieceRequest.decode(request), sent[source]
            assert asked is not None
            pieces = [state[at : at + PIECE_BYTES] for at in range(0, len(state), PIECE_BYTES)]
            if not asked.count:
                yield Index.of(io.BytesIO(state)).encode()
            for piece in pieces[asked.first : asked.first + asked.count]:
                yield b"".join(framed(piece)) if asked.packed else piece

        return chunks()

    live, events = State(), []
    told: list[PeerInput] = []
    engine: Any = SimpleNamespace(state=live, limit_graphs=lambda nbytes: None)
    keeper = Keeper(
        manifest, tmp_path / "peer", lambda stage, post: engine, told.append, fetch, events.append, lambda: 0
    )
    stage = StageIndex(0)
    with pytest.raises(
        StateError, match="orders new initial parameters for stage 0, but those of this run are imported"
    ):
        await keeper.load(LoadState(stage, 0))
    for number in (0, 1):
        with pytest.raises(StateError, match="1 replica: version 0 of stage 0 differs from the run's"):
            await keeper.load(LoadState(stage, 0, (Donor(Actor("liar", number), 0),)))
    assert live.given is None and not [event for event in events if isinstance(event, StateFetched)]
    await keeper.load(LoadState(stage, 0, archive=COORDINATOR))
    assert live.given is not None and live.given.digest() == manifest.initial.digests[0]
    (fetched,) = [event for event in events if isinstance(event, StateFetched)]
    assert (fetched.version, fetched.source) == (0, "archive")


def store(archive: Archive, manifest: RunManifest, version: int, parameters: InitialParameters) -> None:
    for stage, state in enumerate(first_states(parameters, manifest)):
        meta = ShardMeta(manifest.hash, stage, version, version, "cd" * 32, "ef" * 32)
        header, *chunks = iter_chunks(state.tensors, meta)
        writer = archive.receive(stage, version, TransferHeader.decode(header, "x").hash)
        for chunk in (header, *chunks):
            writer.feed(chunk)
        writer.commit()
