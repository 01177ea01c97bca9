"""Files of modules: one folder with the ``state_dict`` as torch writes it, and one folder for each table."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import Any

import torch
import xxhash

from ps2.client.embedding_table import EmbeddingTable
from ps2.errors import CheckpointCorruptError, CheckpointMissingError, UsageError
from ps2.storage.files import read_json, reported, resolve_url, write, write_json
from ps2.torch.training import remote_embeddings

FORMAT = "ps2.torch-module.1"
MANIFEST, STATE = "module.json", "state_dict.pt"


def save_module(path: str, module: Any, record: Mapping[str, Any]) -> None:
    """Write a module to a new folder; the manifest comes last.

    Args:
        path: a path or any fsspec URL; the same place for the servers and this process.
        record: JSON data that ``load_module`` returns.

    Raises:
        UsageError: something exists at this path.
        RecoveryError: the file system fails.
    """
    fs, root = resolve_url(path, "path")
    if fs.exists(root):
        raise UsageError(f"{path}: there is something already; save to a new folder")
    with reported(root, "making the folder"):
        fs.makedirs(root, exist_ok=True)
    tables: dict[str, str] = {}
    folders: dict[int, str] = {}
    for name, part in remote_embeddings(module):
        number = part.table.matrix.number
        if number not in folders:
            folders[number] = f"table-{len(folders)}"
            part.table.save(f"{str(path).rstrip('/')}/{folders[number]}")
        tables[name] = folders[number]
    buffer = io.BytesIO()
    torch.save(module.state_dict(), buffer)
    _, digest = write(fs, f"{root}/{STATE}", [buffer.getvalue()])
    manifest = {"format": FORMAT, "xxh3_128": digest, "tables": tables, **record}
    write_json(fs, f"{root}/{MANIFEST}", manifest)


def load_module(path: str, make: Callable[[], Any]) -> tuple[Any, dict[str, Any]]:
    """Return the module that ``save_module`` wrote, and its ``described``. Its tables are created anew on the fleet.

    Args:
        make: returns a module with the same parameters and remote embeddings; the tables that it makes are replaced.

    Raises:
        CheckpointMissingError: there is no module at this path.
        CheckpointCorruptError: a file does not match the manifest.
        UsageError: the module has other tables or parameters.
    """
    fs, root = resolve_url(path, "path")
    manifest = read_json(fs, f"{root}/{MANIFEST}", FORMAT)
    if manifest is None:
        raise CheckpointMissingError(f"{path}: expected a module, and there is no {MANIFEST} in it")
    with reported(f"{root}/{STATE}", "reading"):
        data = fs.cat_file(f"{root}/{STATE}")
    if xxhash.xxh3_128(data).hexdigest() != manifest["xxh3_128"]:
        raise CheckpointCorruptError(f"{root}/{STATE}: its checksum is not that of the manifest: the file has changed")
    module = make()
    parts, tables = dict(remote_embeddings(module)), manifest["tables"]
    if parts.keys() != tables.keys():
        raise UsageError(
            f"{path}: expected remote embeddings named {sorted(tables)}, and the module has {sorted(parts)}"
        )
    loaded: dict[str, EmbeddingTable] = {}
    for name, part in parts.items():
        folder = tables[name]
        if folder not in loaded:
            loaded[folder] = EmbeddingTable.load(f"{str(path).rstrip('/')}/{folder}")
        part.table = loaded[folder]
    try:
        module.load_state_dict(torch.load(io.BytesIO(data), weights_only=True))
    except RuntimeError as error:  # torch's for other names and shapes
        raise UsageError(f"{path}: modelFn makes another module than was saved: {error}") from error
    return module, manifest
