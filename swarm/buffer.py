"""Buffer: bytes, possibly a view of another object's memory."""

Buffer = bytes | bytearray | memoryview
