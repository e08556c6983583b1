"""Opens a GGUF model in several files, as llama-gguf-split writes them: NAME-00001-of-00003.gguf and so on.

The first part has the metadata; each part has some of the tensors. All parts must be present: a model without its last
part could lack its head, and look like a model that uses its embedding as head.
"""

from __future__ import annotations

import re
from pathlib import Path

from swarm.state.error import StateError
from swarm.state.pretrained.gguf import Gguf, read_gguf

_PART = re.compile(r"(?P<name>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)
_MAX_PARTS = 4096


def read_parts(path: Path) -> Gguf:
    """The model of the file `path`, or of all its parts. Raises StateError naming a missing part."""
    part = read_gguf(path)
    count = part.metadata.get("split.count", 1)
    named = _PART.fullmatch(path.name)
    told = int(named["count"]) if named else 1
    if count in (0, 1) and told == 1:
        return part
    if named is None or count != told or not 1 <= told <= _MAX_PARTS:
        raise StateError(
            path,
            f"its metadata says that it is one of {count!r:.20} parts (split.count), its name says {told}: parts keep "
            "their original names, such as model-00001-of-00002.gguf",
        )
    names = [f"{named['name']}-{number:05d}-of-{told:05d}{path.suffix}" for number in range(1, told + 1)]
    missing = [name for name in names if not (path.parent / name).is_file()]
    if missing:
        raise StateError(path, f"is one of {told} parts of a model, but {missing[0]} is not in the same folder")
    return _joined(path, [(path.parent / name, read_gguf(path.parent / name)) for name in names])


def _joined(path: Path, parts: list[tuple[Path, Gguf]]) -> Gguf:
    whole = Gguf(parts[0][1].metadata, {})
    for number, (where, part) in enumerate(parts):
        if part.metadata.get("split.no") != number or part.metadata.get("split.count") != len(parts):
            told = f"{part.metadata.get('split.no')!r:.20} of {part.metadata.get('split.count')!r:.20}"
            raise StateError(
                where, f"its metadata says part {told} (counted from 0), expected {number} of {len(parts)}"
            )
        for name, tensor in part.tensors.items():
            if name in whole.tensors:
                raise StateError(where, f"tensor {name} is also in another part")
            whole.tensors[name] = tensor
    expected = whole.metadata.get("split.tensors.count", len(whole.tensors))
    if expected != len(whole.tensors):
        raise StateError(path, f"its parts have {len(whole.tensors)} tensors, but {expected!r:.20} are announced")
    return whole
