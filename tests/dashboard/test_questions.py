"""The thread that answers questions: viewers wait in a queue that has an end, and few answers are kept."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.responses import Response

from peers.dashboard.access import Denied
from peers.dashboard.answers import MOST_KEPT, Answers
from peers.dashboard.history.history import History
from peers.dashboard.process import _look, _Server
from peers.dashboard.query import Query
from peers.dashboard.reader import MOST_WAITING, Reader
from peers.dashboard.scalars import write_scalars
from peers.dashboard.stream import TOPICS
from peers.dashboard.tensorboard import TensorBoard
from peers.dashboard.tokens import Access
from peers.dashboard.topics import Topics


def test_questions_of_viewers_do_not_keep_out_the_dashboards_own(tmp_path: Path) -> None:
    """The stream and the TensorBoard file end the process if they fail."""

    async def scene() -> None:
        reader = Reader(lambda: History([tmp_path], tmp_path / "history.sqlite"), lambda: "")
        await reader.open()
        answers, board = Answers(reader, Topics([tmp_path]).by_name(), {}), TensorBoard(tmp_path / "board")
        go_on = threading.Event()
        asked = [asyncio.create_task(reader.ask(lambda _: go_on.wait())) for _ in range(MOST_WAITING)]
        await asyncio.sleep(0)  # now each of them waits
        try:
            with pytest.raises(Denied, match="too many questions"):
                await reader.ask(lambda _: None)
            looks = [asyncio.create_task(_look(answers, topic)) for topic in TOPICS]
            writing = asyncio.create_task(write_scalars(reader, board))
            await asyncio.sleep(0)
            assert not writing.done()
        finally:
            go_on.set()
        assert all(answer for answer, _ in await asyncio.gather(*looks))
        await asyncio.gather(*asked)
        writing.cancel()
        await asyncio.wait([writing])
        await reader.close()
        board.close()

    asyncio.run(scene())


def test_the_newest_answers_are_kept_and_no_more(tmp_path: Path) -> None:
    made: list[float | None] = []

    def marks(history: History, query: Query) -> dict[str, Any]:
        made.append(query.first)
        return {"first": query.first}

    async def scene() -> None:
        reader = Reader(lambda: History([tmp_path], tmp_path / "history.sqlite"), lambda: "")
        await reader.open()
        answers = Answers(reader, {"marks": marks}, {})
        questions = [Query(first=float(number)) for number in range(MOST_KEPT + 1)]
        for question in (*questions, questions[-1], questions[1], questions[0]):
            await answers.body("marks", question, Access.READ)
        assert made == [question.first for question in (*questions, questions[0])], "only the oldest is made again"
        assert len(answers._kept) == MOST_KEPT
        await reader.close()

    asyncio.run(scene())


def test_an_answer_about_the_past_is_made_again_when_the_logs_are_read_again(tmp_path: Path) -> None:
    log, made = tmp_path / "events.jsonl", []

    def write(reason: str) -> None:
        events = [{"at": at, "kind": "StateChanged", "state": "paused", "reason": reason * 200} for at in (1e9, 2e9)]
        log.write_text("".join(json.dumps(event) + "\n" for event in events))

    def run(history: History, query: Query) -> dict[str, Any]:
        made.append(history.at(query.at or 0.0).run.reason[:1])
        return {}

    async def scene() -> None:
        reader = Reader(lambda: History([tmp_path], tmp_path / "history.sqlite"), lambda: "")
        await reader.open()
        answers, question = Answers(reader, {"run": run}, {}), Query(at=1.5e9)
        for reason in "ab":
            write(reason)
            while not reader.caught_up or reader.last_at != 2e9 or reader._held.now.run.reason[0] != reason:
                await reader._in_thread(reader._look)
            for _ in range(2):
                await answers.body("run", question, Access.READ)
        await reader.close()

    asyncio.run(scene())
    assert made == ["a", "b"], "once for each reading"


def test_what_the_archive_holds_is_looked_up_again_for_a_past_moment_too(tmp_path: Path) -> None:
    """The archive drops old versions. Only the first home's files can be downloaded."""
    first, second = tmp_path / "first", tmp_path / "second"
    for home, version in ((first, 3), (second, 4)):
        (home / "archive" / f"{version:08d}").mkdir(parents=True)
        (home / "archive" / f"{version:08d}" / "manifest.json").touch()
    events = [{"at": 1e9, "kind": "CheckpointArchived", "version": version, "digests": ["a"]} for version in (3, 4)]
    (first / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))

    async def scene() -> None:
        reader = Reader(lambda: History([first, second], tmp_path / "history.sqlite"), lambda: "")
        await reader.open()
        answers = Answers(reader, Topics([first, second]).by_name(), {"checkpoints": lambda _: {"exports": []}})

        async def look() -> dict[int, bool]:
            await reader._in_thread(reader._look)
            assert reader.caught_up and reader.last_at == 2e9
            body = await answers.body("checkpoints", Query(at=1.1e9), Access.READ)
            return {row["version"]: row["here"] for row in json.loads(body.raw)["checkpoints"]}

        with (first / "events.jsonl").open("a") as log:
            log.write(json.dumps({"at": 2e9, "kind": "StateChanged", "state": "training", "reason": ""}) + "\n")
        assert await look() == {3: True, 4: False}
        (first / "archive" / "00000003" / "manifest.json").unlink()
        with (first / "events.jsonl").open("a") as log:
            log.write(json.dumps({"at": 2e9, "kind": "StateChanged", "state": "paused", "reason": ""}) + "\n")
        assert await look() == {3: False, 4: False}
        await reader.close()

    asyncio.run(scene())


def test_questions_that_wait_do_not_delay_the_end(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_text(
        "".join(f'{{"at":{1000 + number},"kind":"RunPaused","reason":"x"}}\n' for number in range(50))
    )
    answered: list[int] = []

    async def scene() -> None:
        reader = Reader(lambda: History([tmp_path], tmp_path / "history.sqlite"), lambda: "")
        await reader.open()
        begun, go_on = threading.Event(), threading.Event()

        def long(history: History) -> None:
            while history.follow():
                pass
            begun.set()
            go_on.wait()
            history.at(1030.0)  # reads the log
            answered.append(-1)

        asked = [asyncio.create_task(reader.ask(long))]
        asked += [asyncio.create_task(reader.ask(lambda _, number=n: answered.append(number))) for n in range(9)]  # type: ignore[misc]
        await asyncio.to_thread(begun.wait)
        closing = asyncio.create_task(reader.close())
        await asyncio.sleep(0)
        go_on.set()
        await closing
        results = await asyncio.gather(*asked, return_exceptions=True)
        assert answered == [] and all(isinstance(each, Denied) and each.status == 503 for each in results)
        with pytest.raises(Denied, match="being ended"):
            await reader.ask(lambda _: None)
        with pytest.raises(asyncio.CancelledError):
            await reader.ask(lambda _: None, own=True)

    asyncio.run(scene())
    again = History([tmp_path], tmp_path / "history.sqlite")
    assert not again.follow() and again.now.events == 50 and again.position.endswith("-0"), "the history was closed"


def test_a_server_that_ends_refuses_the_questions_that_wait_at_once(tmp_path: Path) -> None:
    async def scene() -> None:
        reader = Reader(lambda: History([tmp_path], tmp_path / "history.sqlite"), lambda: "")
        await reader.open()
        begun, go_on = threading.Event(), threading.Event()

        def long(_: History) -> None:
            begun.set()
            go_on.wait()

        asked = [asyncio.create_task(reader.ask(each)) for each in (long, lambda _: None)]
        await asyncio.to_thread(begun.wait)
        config = uvicorn.Config(Response(), lifespan="off", log_level="error", timeout_graceful_shutdown=2)
        config.load()
        server = _Server(config, reader)
        server.lifespan = config.lifespan_class(config)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            await server.startup(sockets=[listener])
            ending = asyncio.create_task(server.shutdown(sockets=[listener]))
            with pytest.raises(Denied, match="being ended"):
                await asked[1]
            assert not asked[0].done(), "the first question is still being answered"
            go_on.set()
            await ending
        await asked[0]
        await reader.close()

    asyncio.run(scene())
