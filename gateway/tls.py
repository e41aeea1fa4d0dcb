"""The certificate of the device-facing port, and how a new one takes its place while connections live on."""

from __future__ import annotations

import ssl
from pathlib import Path

import structlog

from gateway.metrics import GatewayMetrics

log = structlog.get_logger(__name__)


class TlsIdentity:
    """What new connections are greeted with. Those that are open keep what they have."""

    def __init__(self, certificate: Path, key: Path, metrics: GatewayMetrics) -> None:
        """Raises OSError (ssl.SSLError is one) when the two files cannot be used."""
        self._certificate = certificate
        self._key = key
        self._metrics = metrics
        self.context = self._read()

    def reload(self) -> None:
        """Read both files again. When they cannot be used, the old ones stay and the log says so."""
        try:
            self.context = self._read()
        except OSError as error:
            # Not the library's whole text: it may quote from the files.
            reason = error.reason if isinstance(error, ssl.SSLError) else error.strerror
            self._metrics.tls_reloads.labels(outcome="failed").inc()
            log.error(
                "the new TLS certificate cannot be used; the old one stays", reason=reason or type(error).__name__
            )
            return
        self._metrics.tls_reloads.labels(outcome="done").inc()
        log.info("new connections get the TLS certificate that was read now")

    def _read(self) -> ssl.SSLContext:
        """A context of its own for each reading: half of a failed one is never in use."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        # A key with a passphrase is a mistake: without an answer here OpenSSL would ask the terminal.
        context.load_cert_chain(self._certificate, self._key, password="")
        context.set_alpn_protocols(["http/1.1"])
        return context
