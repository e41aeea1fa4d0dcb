"""A certificate for one run, made on the spot and trusted by that run's clients alone."""

from __future__ import annotations

import datetime
import ssl
from ipaddress import IPv4Address
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

_DAY: Final = datetime.timedelta(days=1)
_NAMES: Final = (x509.DNSName("localhost"), x509.IPAddress(IPv4Address("127.0.0.1")))


def self_signed(directory: Path) -> tuple[Path, Path]:
    """Write a certificate for localhost and 127.0.0.1 and its key into `directory`; their paths."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _DAY)
        .not_valid_after(now + _DAY)
        .add_extension(x509.SubjectAlternativeName(_NAMES), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    certificate_file, key_file = directory / "certificate.pem", directory / "key.pem"
    certificate_file.write_bytes(built.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return certificate_file, key_file


def trusting(certificate_file: Path) -> ssl.SSLContext:
    """A client's context that trusts this certificate and no other."""
    return ssl.create_default_context(cafile=str(certificate_file))
