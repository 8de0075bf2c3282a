"""Certificates made for one run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import trustme

from graphlearn_dist.config import TlsSettings


@dataclass(frozen=True)
class Certificates:
    """An authority and what it has signed, as files in a folder."""

    folder: Path
    authority: trustme.CA

    @classmethod
    def make(cls, folder: Path) -> Certificates:
        """A new authority."""
        folder.mkdir(parents=True, exist_ok=True)
        authority = trustme.CA()
        authority.cert_pem.write_to_path(str(folder / "authority.pem"))
        return cls(folder, authority)

    def settings(self, host: str | None = "127.0.0.1", **options: bool) -> TlsSettings:
        """With a certificate made out for ``host``, or with none."""
        trusted = str(self.folder / "authority.pem")
        if host is None:
            return TlsSettings(trusted, **options)
        certificate, key = (self.folder / f"{host}.{name}.pem" for name in ("certificate", "key"))
        if not key.exists():
            issued = self.authority.issue_cert(host)
            issued.private_key_pem.write_to_path(str(key))
            for blob in issued.cert_chain_pems:
                blob.write_to_path(str(certificate), append=True)
        return TlsSettings(trusted, str(certificate), str(key), **options)
