"""TensorBoard files: the format is TensorFlow's, and a file that was torn is gone on with."""

import json
import struct
import time

import pytest
from served_dashboard import SMALL, dashboard, generated_home

from peers.dashboard.tensorboard import NAME, TensorBoard, _masked, read_scalars


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
