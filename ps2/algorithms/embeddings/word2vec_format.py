"""Files in word2vec's format, text or binary, which gensim's ``KeyedVectors`` and many others read.

The first line has the number of vectors and their dimension. Then each name is followed by a space and its numbers: in
text separated by spaces, in binary as little-endian float32.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from ps2.array_types import Float32s
from ps2.data.names import Names
from ps2.errors import InputError
from ps2.storage.files import resolve_url, write_whole

# Vectors converted to text at once.
SOME = 4096
# Readers of the format end a name or a line at these.
SPACE = re.compile(r"[\s\x00]")


def write_word2vec(path: str, names: Names, vectors: Float32s, binary: bool) -> None:
    """Write vectors to a file, local or an fsspec URL, replacing it.

    Raises:
        InputError: a name is empty or has white space, which would end it in such a file.
        RecoveryError: the file system refuses.
    """
    texts = [str(name) for name in names.values.to_pylist()]
    for text in texts:
        if not text or SPACE.search(text):
            raise InputError(
                f"{path}: expected names without white space, which ends them in such a file, got {text!r:.100}"
            )
    fs, root = resolve_url(path, "path")
    write_whole(fs, root, _parts(texts, vectors, binary))


def _parts(texts: list[str], vectors: Float32s, binary: bool) -> Iterator[bytes]:
    yield f"{len(vectors)} {vectors.shape[1]}\n".encode()
    for begin in range(0, len(texts), SOME):
        some = slice(begin, begin + SOME)
        rows = _bytes(vectors[some]) if binary else _words(vectors[some])
        yield b"".join(b"%b %b\n" % (text.encode(), row) for text, row in zip(texts[some], rows, strict=True))


def _bytes(vectors: Float32s) -> list[bytes]:
    return [row.tobytes() for row in np.ascontiguousarray(vectors, "<f4")]


def _words(vectors: Float32s) -> list[bytes]:
    """Return numbers as the shortest text that reads back exactly."""
    words: Any = vectors.astype("S")
    return [b" ".join(row) for row in words.tolist()]
