"""The libp2p daemon without its packing, for all processes that tests start.

hivemind's daemon is packed by UPX: at each start it unpacks 29 MB into memory, which is 0.09 of the 0.14 seconds of CPU
time that its start takes. Tests start it a thousand times. The unpacked file has the same program, byte for byte: the
daemon unpacks itself here, is stopped before its first own instruction, and its memory is written to a file.

Only on Linux with x86-64. Elsewhere, and where a child may not be traced, tests start the packed daemon.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import platform
import signal
import struct
from pathlib import Path

_TRACEME, _GETREGS, _SYSCALL = 0, 12, 24
_ARCH_PRCTL = 158
"""The system call with which the daemon's own code begins. The packer's code does not use it."""
_REGISTERS, _CALL = 27 * 8, 15 * 8
"""Size of the registers in bytes, and where the number of the system call is among them."""
_HEADER, _SEGMENT, _LOAD = struct.Struct("<16sHHIQQQIHHHHHH"), struct.Struct("<IIQQQQQQ"), 1


def packed_daemon() -> Path | None:
    """The daemon of hivemind, if it is packed and can be unpacked here. hivemind itself is not imported."""
    found = importlib.util.find_spec("hivemind")
    if found is None or found.origin is None or (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        return None
    daemon = Path(found.origin).parent / "hivemind_cli" / "p2pd"
    with daemon.open("rb") as file:
        return daemon if b"UPX!" in file.read(512) else None


def write_unpacked(packed: Path, folder: Path) -> Path:
    """Write the program to `folder`, under the same name. Raises OSError."""
    target = folder / packed.name
    target.write_bytes(unpacked(packed))
    target.chmod(0o755)
    return target


def unpacked(packed: Path) -> bytes:
    """The program in a file that UPX has packed. Raises OSError."""
    pid = os.fork()
    if not pid:
        try:
            if not _ptrace()(_TRACEME, 0, None, None):
                os.execv(packed, [str(packed), "-help"])
        finally:
            os._exit(127)
    if not _stops_at_its_first_own_call(pid):
        raise OSError("it cannot be traced, or has ended before it was unpacked")
    try:
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
            return _file_of(memory.fileno(), _base(pid))
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _stops_at_its_first_own_call(pid: int) -> bool:
    """False if the process has ended before."""
    ptrace, registers = _ptrace(), ctypes.create_string_buffer(_REGISTERS)
    while os.WIFSTOPPED(os.waitpid(pid, 0)[1]):
        ptrace(_GETREGS, pid, None, ctypes.addressof(registers))
        if struct.unpack_from("<q", registers, _CALL)[0] == _ARCH_PRCTL:
            return True
        if ptrace(_SYSCALL, pid, None, None):
            os.kill(pid, signal.SIGKILL)
    return False


def _ptrace() -> ctypes._NamedFuncPointer:
    call = ctypes.CDLL(None, use_errno=True).ptrace
    call.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
    return call


def _base(pid: int) -> int:
    """Where the file begins in the memory of a process: the program's header is there too."""
    return min(int(line.partition("-")[0], 16) for line in Path(f"/proc/{pid}/maps").read_text().splitlines())


def _file_of(memory: int, base: int) -> bytes:
    """A file of which the segments in memory are loaded. It has no sections: no program needs them to run."""
    header = list(_HEADER.unpack(os.pread(memory, _HEADER.size, base)))
    segments, count = header[5], header[10]
    table = os.pread(memory, _SEGMENT.size * count, base + segments)
    made = bytearray()
    for number in range(count):
        kind, _, offset, address, _, size, _, _ = _SEGMENT.unpack_from(table, number * _SEGMENT.size)
        if kind == _LOAD:
            made.extend(bytes(max(0, offset + size - len(made))))
            made[offset : offset + size] = _read(memory, address, size)
    header[6] = header[12] = header[13] = 0  # where the sections are, how many, and which has their names
    made[: _HEADER.size] = _HEADER.pack(*header)
    return bytes(made)


def _read(memory: int, address: int, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        found += os.pread(memory, size - len(found), address + len(found))
    return bytes(found)
