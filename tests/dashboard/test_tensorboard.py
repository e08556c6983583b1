"""TensorBoard files: the format is TensorFlow's, and a file that was torn is gone on with."""

import struct

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
    assert board.last_step == 0
    board.add(1001.5, 300, {"loss": 4.75})
    board.close()
    found = [(at, step, values) for at, step, values, _ in read_scalars(path)]
    assert found[1:] == [(1000.5, 0, {"loss": 5.25, "efficiency": 0.5}), (1001.5, 300, {"loss": 4.75})]
