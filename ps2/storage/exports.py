"""The format of an export: a folder with a base of all keys, deltas of changed keys, and a manifest.

``manifest.json`` names all files and is renamed into place last, so an incomplete export is never read::

    manifest.json
    base-00000001-3f9a2c1d77ab/keys-0.npy      int64 (n,), ascending
                               values-0.npy    float32 (n, width)
                               removed.npy     int64 (m,), ascending: removed keys
                               dense-bias.npy  an array without keys, complete in each export
    delta-00000002-77ab3f9a2c1d/...

A key has the values in the newest entry that contains the key. It has no values if a later entry lists it as removed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ps2.errors import CheckpointMissingError
from ps2.storage.files import read_json, resolve_url
from ps2.storage.manifest import Fields, SavedFile, saved_file

FORMAT = "ps2.export.v1"
MANIFEST = "manifest.json"
FOLDER = re.compile(r"(base|delta)-(\d{8,})-[0-9a-f]{12}")
ARRAY_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


@dataclass(frozen=True)
class Description:
    """The model of an export, without its arrays. JSON data only.

    Attributes:
        kind: the kind of model, which selects the scoring function (``ps2.serving.loading``); "table": no scores.
        width: the number of values of each key.
        config: the scoring function's settings.
        hasher: the hasher from columns to keys (``FieldHasher.to_json``); None: the caller passes keys.
        initial: the values of keys that are not in the export (``ps2.matrix.key_policy.Initial``); None: zeros.
    """

    kind: str
    width: int
    config: Mapping[str, Any] = field(default_factory=dict)
    hasher: Mapping[str, Any] | None = None
    initial: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class KeyFiles:
    """A pair of files with ``count`` ascending keys and their values. A folder has several pairs, in key order."""

    count: int
    keys: SavedFile
    values: SavedFile

    @property
    def nbytes(self) -> int:
        return self.keys.nbytes + self.values.nbytes


@dataclass(frozen=True)
class ExportEntry:
    """The files of one call of ``export``: a base, or a delta to the entries before it.

    Attributes:
        folder: the name of the folder with the files, which begins with "base" or "delta".
        removed: the file of removed keys; None if no key was removed.
        dense: the files of the arrays without keys, by array name.
        source: the origin of the keys (fleet, matrix, mark) as JSON data, for the next delta.
        created_s: the Unix time of the export, in seconds.
    """

    number: int
    folder: str
    key_files: tuple[KeyFiles, ...]
    removed: SavedFile | None
    dense: Mapping[str, SavedFile]
    source: Mapping[str, Any]
    created_s: float

    @property
    def keys(self) -> int:
        return sum(files.count for files in self.key_files)

    @property
    def files(self) -> list[SavedFile]:
        """All files of the folder."""
        key_files = [file for files in self.key_files for file in (files.keys, files.values)]
        return [*key_files, *([self.removed] if self.removed else []), *self.dense.values()]

    @property
    def nbytes(self) -> int:
        return sum(file.nbytes for file in self.files)


@dataclass(frozen=True)
class ExportManifest:
    """The manifest of an export: a base and its deltas.

    Attributes:
        entries: the base, then its deltas in order.
        version: the version of PS2 that wrote the manifest.
    """

    description: Description
    entries: tuple[ExportEntry, ...]
    version: str

    @property
    def newest(self) -> ExportEntry:
        return self.entries[-1]

    @property
    def number(self) -> int:
        return self.newest.number

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "version": self.version,
            "description": asdict(self.description),
            "exports": [_to_json(entry) for entry in self.entries],
        }

    @classmethod
    def from_json(cls, content: object, path: str) -> ExportManifest:
        """Return the manifest from the JSON data of ``to_json``; ``path``: the file's path, for errors."""
        fields = Fields(path, content)
        entries = tuple(_entry(entry) for entry in fields.objects("exports"))
        numbers = [entry.number for entry in entries]
        is_base = [entry.folder.startswith("base") for entry in entries]
        if not entries or not is_base[0] or any(is_base[1:]) or numbers != sorted(set(numbers)):
            raise fields.error("exports", "a base and then its deltas, with ascending numbers")
        return cls(_description(fields.object("description")), entries, fields.get("version", str))


def find_manifest(url: str) -> ExportManifest | None:
    """Return the manifest of an export; None if there is none. Raise CheckpointCorruptError if it is damaged."""
    fs, root = resolve_url(url, "path")
    fs.invalidate_cache()  # another process may have exported in the meantime
    path = f"{root}/{MANIFEST}"
    content = read_json(fs, path, FORMAT)
    return None if content is None else ExportManifest.from_json(content, path)


def read_manifest(url: str) -> ExportManifest:
    """Return the manifest of an export; raises like ``find_manifest``, and CheckpointMissingError if there is none."""
    manifest = find_manifest(url)
    if manifest is None:
        raise CheckpointMissingError(f"{url}: expected an export, but there is no {MANIFEST} in this folder")
    return manifest


def _description(fields: Fields) -> Description:
    if not fields.count("width"):
        raise fields.error("width", "a positive integer")
    return Description(
        kind=fields.get("kind", str),
        width=fields.count("width"),
        config=fields.get("config", dict),
        hasher=fields.get("hasher", dict, type(None)),
        initial=fields.get("initial", dict, type(None)),
    )


def _to_json(entry: ExportEntry) -> dict[str, Any]:
    content = asdict(entry)
    # These fields have other names in manifests.
    content["parts"], content["position"] = content.pop("key_files"), content.pop("source")
    return content


def _entry(fields: Fields) -> ExportEntry:
    number, folder = fields.count("number"), fields.get("folder", str)
    match = FOLDER.fullmatch(folder)
    if match is None or int(match[2]) != number:
        raise fields.error("folder", f"base-{number:08d}-... or delta-{number:08d}-...")
    dense = fields.object("dense")
    names = fields.get("dense", dict)
    if not all(ARRAY_NAME.fullmatch(name) for name in names):
        raise fields.error("dense", "names of letters, digits, dots and hyphens")
    return ExportEntry(
        number=number,
        folder=folder,
        key_files=tuple(
            KeyFiles(part.count("count"), saved_file(part.object("keys")), saved_file(part.object("values")))
            for part in fields.objects("parts")
        ),
        removed=None if fields.get("removed", dict, type(None)) is None else saved_file(fields.object("removed")),
        dense={name: saved_file(dense.object(name)) for name in names},
        source=fields.get("position", dict),
        created_s=float(fields.get("created_s", float, int)),
    )
