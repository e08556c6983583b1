"""Buffer: bytes that may be another's memory."""

Buffer = bytes | bytearray | memoryview
