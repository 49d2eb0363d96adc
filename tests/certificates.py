"""An authority of the test's own, and a certificate of localhost and 127.0.0.1 by it."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.servers import missing


@dataclass(frozen=True)
class Certificates:
    """Files: of the authority, and of a server that it vouches for."""

    authority: Path
    certificate: Path
    key: Path

    def server_context(self) -> ssl.SSLContext:
        """Return how a server encrypts with them."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, self.key)
        return context


def made_in(folder: Path) -> Certificates:
    """Make them in a folder that is there."""
    if shutil.which("openssl") is None:
        missing("openssl(1)")
    script = (
        'openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj "/CN=test authority" -keyout ca.key -out ca.pem'
        ' && openssl req -newkey rsa:2048 -nodes -subj "/CN=localhost" -keyout key.pem -out csr.pem'
        " && printf 'subjectAltName=DNS:localhost,IP:127.0.0.1' >ext"
        " && openssl x509 -req -in csr.pem -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile ext -out cert.pem"
        " && chmod 644 key.pem"  # servers run as somebody else
    )
    subprocess.run(["/bin/sh", "-c", script], cwd=folder, check=True, capture_output=True)
    return Certificates(folder / "ca.pem", folder / "cert.pem", folder / "key.pem")
