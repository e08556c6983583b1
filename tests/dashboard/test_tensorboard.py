"""TensorBoard files: the format is TensorFlow's, and a file that was torn is gone on with."""

import asyncio
import contextlib
import errno
import json
import struct
import time

import pytest
from served_dashboard import SMALL, dashboard, generated_home

from peers.dashboard.history.history import History
from peers.dashboard.scalars import Scalars, write_scalars
from peers.dashboard.tensorboard import NAME, TensorBoard, _fields, _masked, read_scalars
from swarm import events as e


def test_the_checksum_is_tensorflows() -> None:
    # RFC 3720, B.4: CRC-32C of 32 bytes of zeros is 8a9136aa; the mask is record_writer.h's
    crc = 0x8A9136AA
    masked = (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
    assert _masked(bytes(32)) == struct.pack("<I", masked)


def test_the_first_record_is_byte_for_byte_what_tensorflow_writes(tmp_path) -> None:
    TensorBoard(tmp_path).close()
    raw = (tmp_path / NAME).read_bytes()
    data = b"\x09" + bytes(8) + b"\x1a\x0dbrain.Event:2"
    assert raw[:8] == struct.pack("<Q", len(data)) and raw[12:-4] == data


def test_what_is_written_is_read_and_a_torn_record_is_written_again(tmp_path) -> None:
    board = TensorBoard(tmp_path)
    board.add(1000.5, 0, {"loss": 5.25, "efficiency": 0.5})
    board.add(1001.5, 300, {"loss": 4.75})
    board.close()
    path = tmp_path / NAME
    path.write_bytes(path.read_bytes()[:-3])
    board = TensorBoard(tmp_path)
    assert board.last == {"loss": 0, "efficiency": 0}
    board.add(1001.5, 300, {"loss": 4.75})
    board.close()
    found = [(at, step, values) for at, step, values, _ in read_scalars(path)]
    assert found[1:] == [(1000.5, 0, {"loss": 5.25, "efficiency": 0.5}), (1001.5, 300, {"loss": 4.75})]


def test_every_step_of_a_run_is_written_once_also_after_a_restart(tmp_path) -> None:
    home, board = generated_home(tmp_path / "home", SMALL), tmp_path / "board"
    log = [json.loads(line) for line in (home / "events.jsonl").read_text().splitlines()]
    losses = {line["step"]: line["loss"] for line in log if line["kind"] == "StepDecided"}
    heldout = {line["version"]: line["loss"] for line in log if line["kind"] == "Evaluated"}
    half = log[: next(i for i, line in enumerate(log) if line["kind"] == "Evaluated") + 5]
    for lines in (half, log):
        (home / "events.jsonl").write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))
        kinds = [line["kind"] for line in lines]
        expected = kinds.count("StepDecided") + kinds.count("Evaluated") + 1
        with dashboard(home, "--tensorboard", board) as shown:
            shown.wait("/api/v1/run", lambda run: not run["warnings"])
            deadline = time.monotonic() + 30
            while not (board / NAME).exists() or len(list(read_scalars(board / NAME))) < expected:
                assert time.monotonic() < deadline
                time.sleep(0.2)
    rows = [(step, values) for _, step, values, _ in read_scalars(board / NAME)]
    written = [step for step, values in rows if "loss" in values]
    assert written == sorted(losses)
    assert all(values["loss"] == pytest.approx(losses[step]) for step, values in rows if "loss" in values)
    found = {step: values["heldout_loss"] for step, values in rows if "heldout_loss" in values}
    assert found == pytest.approx(heldout)


def test_a_step_back_is_what_tensorflow_calls_a_start_and_a_restart_knows_of_it(tmp_path) -> None:
    board = TensorBoard(tmp_path)
    for step in range(6):
        board.add(1000.0 + step, step, {"loss": 5.0})
    board.go_back(1010.0, 3)
    board.close()
    raw = (tmp_path / NAME).read_bytes()
    assert list(_fields(raw[-4 - 15 : -4])) == [(1, 1010.0), (2, 3), (7, b"\x08\x01")]
    again = TensorBoard(tmp_path)
    assert board.last == again.last == {"loss": 2}
    again.close()


class _Asked:
    """Answers one question about a history, then ends the writing of scalars."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._asked = False

    async def ask(self, question, *, own):
        if self._asked:
            raise EOFError
        self._asked = True
        return question(self._history)


@pytest.mark.parametrize("repeated", [0, 2, 5])
def test_what_a_rollback_has_undone_is_replaced(tmp_path, repeated: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """`repeated`: number of steps that were decided again before the figures are read."""
    monkeypatch.setattr("peers.dashboard.scalars._EVERY_S", 0.0)

    def decided(step: int, loss: float) -> e.Event:
        return e.StepDecided(1, step, 1.0, loss, 1.0, 800, [], [])

    told = [e.ProcessStarted("coordinator", "C.0", "run", "1", None), e.CoordinatorStarted(1, -1)]
    told += [*(decided(step, 9.0) for step in range(6)), e.Evaluated(3, 8.0, 100), e.Evaluated(5, 8.0, 100)]
    back = [e.RolledBack(2, 3, "it diverged"), *(decided(3 + step, 4.0) for step in range(repeated))]
    again = [decided(step, 4.0) for step in range(3 + repeated, 8)]
    again += [e.Evaluated(5, 2.0, 100)]
    history, at = History([tmp_path], tmp_path / "history.sqlite"), 1000.0
    for part in (told, back, again):
        with (tmp_path / "events.jsonl").open("a") as log:
            for event in part:
                at += 1.0
                log.write(json.dumps(e.to_record(event, at), separators=(",", ":")) + "\n")
        while history.follow():
            pass
        board = TensorBoard(tmp_path)
        with contextlib.suppress(EOFError):
            asyncio.run(write_scalars(_Asked(history), board))
        board.close()
    history.close()
    losses, heldout = {}, {}
    for _, step, values, _ in read_scalars(tmp_path / NAME):
        if not values:
            losses = {each: loss for each, loss in losses.items() if each < step}
            heldout = {each: loss for each, loss in heldout.items() if each < step}
        losses |= {step: values["loss"]} if "loss" in values else {}
        heldout |= {step: values["heldout_loss"]} if "heldout_loss" in values else {}
    assert losses == dict.fromkeys(range(3), 9.0) | dict.fromkeys(range(3, 8), 4.0)
    assert heldout == {3: 8.0, 5: 2.0}


class _Asking:
    """Answers all questions about a history at once."""

    def __init__(self, history: History) -> None:
        self._history = history

    async def ask(self, question, *, own):
        return question(self._history)


async def test_a_full_disk_is_told_and_what_is_missing_is_written_when_there_is_room(
    tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("peers.dashboard.scalars._EVERY_S", 0.01)
    monkeypatch.setattr("peers.dashboard.scalars.RETRY_S", 0.01)
    monkeypatch.setattr("peers.dashboard.scalars.LONGEST_RETRY_S", 0.02)
    failed = []

    def full(board: TensorBoard) -> None:
        failed.append(board)
        board._file.flush()
        with board.path.open("r+b") as file:
            file.truncate(board.path.stat().st_size - 3)  # the last record is torn
        raise OSError(errno.ENOSPC, "No space left on device")

    home = generated_home(tmp_path / "home", SMALL)
    history, scalars = History([home], tmp_path / "history.sqlite"), Scalars(tmp_path / "board")
    while history.follow():
        pass
    with monkeypatch.context() as patched:
        patched.setattr(TensorBoard, "flush", full)
        writing = asyncio.create_task(scalars.run(_Asking(history)))
        async with asyncio.timeout(30):
            while len(failed) < 3:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    assert "No space left on device" in scalars.trouble and not writing.done()
    async with asyncio.timeout(30):
        while scalars.trouble:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)
    history.close()
    decided = [json.loads(line) for line in (home / "events.jsonl").read_text().splitlines()]
    losses = {line["step"]: line["loss"] for line in decided if line["kind"] == "StepDecided"}
    written = [step for _, step, values, _ in read_scalars(tmp_path / "board" / NAME) if "loss" in values]
    assert written == sorted(losses)


def test_a_dashboard_serves_also_if_it_cannot_write_for_tensorboard(tmp_path) -> None:
    home, board = generated_home(tmp_path / "home", SMALL), tmp_path / "board"
    board.write_text("a file, where a folder should be")
    with dashboard(home, "--tensorboard", board) as shown:
        run = shown.wait("/api/v1/run", lambda run: run["step"] and any("TensorBoard" in w for w in run["warnings"]))
        assert str(board) not in str(run["warnings"]) and shown.process.poll() is None
