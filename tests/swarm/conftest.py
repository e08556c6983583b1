"""One warm nursery, one tiny corpus and one reference per codec for all swarms of a session."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))

from browser_page import chromium, page
from swarm_group import GroupSwarm, founded
from swarm_processes import Nursery, Swarm

__all__ = ["chromium", "page"]

STEPS = 5
CODECS = ("none", "int8")

RUN = f"""
[run]
name = "tiny"
steps = {STEPS}
[model]
vocab_size = 512
dim = 32
layers = 4
heads = 2
kv_heads = 1
ffn_dim = 64
context = 32
cuts = [2]
[batch]
microbatches = 8
sequences = 2
sequence_length = 32
[checkpoint]
every = 2
[evaluation]
every = 0
[timing]
recruit_after_s = 1.0
[swarm]
max_replicas = 2
[audit]
every = 0
[data]
directory = "../corpus"
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.swarm)


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    made = Nursery()
    yield made
    made.close()


@pytest.fixture(scope="session")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a prepared corpus of text and one of images in it."""
    from peers.chaos.small_run import write_words
    from swarm.data import digits, open_source, prepare, prepare_images

    folder = tmp_path_factory.mktemp("ground")
    prepare(open_source([write_words(folder, 200)]), folder / "corpus", vocab_size=400, heldout_fraction=0.05)
    prepare_images(digits(), folder / "images")
    return folder


MakeSwarm = Callable[..., Swarm]
MakeGroup = Callable[..., GroupSwarm]


@pytest.fixture
def make_swarm(nursery: Nursery, ground: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeSwarm]:
    """`make_swarm(codec, "table.key=value", …)`: a swarm that is not started yet. What still lives is killed after."""
    from peers.run.resolved_run import resolve_run

    made: list[Swarm] = []

    def make(codec: str, *sets: str) -> Swarm:
        folder = tmp_path_factory.mktemp("swarm")
        path = ground / codec / "RUN.toml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(RUN)
        sets = (f"codec.forward={codec}", f"codec.backward={codec}", *sets)
        made.append(Swarm(nursery, folder, path, resolve_run(path, sets).manifest, *sets))
        return made[-1]

    yield make
    for swarm in made:
        swarm.kill()


@pytest.fixture
def make_group(nursery: Nursery, ground: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeGroup]:
    """`make_group("table.key=value", …)`: a swarm with three coordinators that are not started yet."""
    from peers.run.resolved_run import resolve_run

    made: list[GroupSwarm] = []

    def make(*sets: str) -> GroupSwarm:
        folder = tmp_path_factory.mktemp("group")
        path = ground / "none" / "RUN.toml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(RUN)
        sets = ("codec.forward=none", "codec.backward=none", founded(folder), *sets)
        made.append(GroupSwarm(nursery, folder, path, resolve_run(path, sets).manifest, *sets))
        return made[-1]

    yield make
    for swarm in made:
        swarm.kill()


@pytest.fixture(scope="session")
def reference(ground: Path) -> Callable[[Swarm], tuple[str, ...]]:
    """The stage digests of the single-process run, computed once for all runs that differ in timing alone."""
    from peers.run.home import Home
    from peers.run.reference import train_reference
    from peers.run.replay import read_replay
    from swarm.data.reader import CorpusReader

    known: dict[str, tuple[str, ...]] = {}

    def replayed(swarm: Swarm) -> tuple[str, ...]:
        """Of a run whose result depends on what its peers remembered or chose: no two are alike."""
        reader = CorpusReader(ground / "corpus", swarm.manifest)
        replay = read_replay(Home(swarm.coordinator.home), swarm.manifest.hash)
        return train_reference(swarm.manifest, reader, replay=replay).digests

    def digests(swarm: Swarm) -> tuple[str, ...]:
        of = swarm.manifest
        if of.codec.auto or of.codec.remembers or of.sums.compresses or of.sums.mode != "exact":
            return replayed(swarm)
        what = swarm.manifest.model_dump(include={"run", "model", "batch", "optimizer", "codec", "sums", "data"})
        key = repr(what)
        if key not in known:
            corpus = ground / ("images" if swarm.manifest.data.kind == "images" else "corpus")
            reader = CorpusReader(corpus, swarm.manifest)
            known[key] = tuple(train_reference(swarm.manifest, reader).digests)
        return known[key]

    return digests
