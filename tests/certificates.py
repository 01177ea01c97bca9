"""Certificates for tests: of an authority of their own, in files as users have them."""

from __future__ import annotations

import datetime
import os
from functools import lru_cache
from pathlib import Path

import trustme

from ps2.certificates import TlsFiles

LOOPBACK = ("127.0.0.1", "localhost")


@lru_cache(maxsize=4)
def authority(which="the fleet's"):
    """An authority; another one for another name."""
    return trustme.CA(organization_name=which)


def write(folder, names=LOOPBACK, signed_by="the fleet's", believed="the fleet's", expired=False, tls_name=""):
    """Write certificate, key and authority into a folder; return them."""
    folder = Path(folder)
    folder.mkdir(exist_ok=True, parents=True)
    now = datetime.datetime.now(datetime.timezone.utc)
    valid = {"not_before": now - datetime.timedelta(9), "not_after": now - datetime.timedelta(1)} if expired else {}
    issued = authority(signed_by).issue_cert(*names, **valid)
    replace(folder / "cert.pem", b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    replace(folder / "key.pem", issued.private_key_pem.bytes())
    replace(folder / "ca.pem", authority(believed).cert_pem.bytes())
    return TlsFiles(*(str(folder / name) for name in ("cert.pem", "key.pem", "ca.pem")), tls_name)


def replace(path, text):
    """Write a file that only its owner can read, in place of one that is there."""
    fresh = path.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(text)
    fresh.replace(path)
