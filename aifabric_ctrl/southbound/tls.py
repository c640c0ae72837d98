"""TLS for the OpenFlow listener: our certificate, and the authority whose switches we accept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from eventlet.green import ssl

from aifabric_ctrl.model.errors import InvalidValue

MINIMUM = ssl.TLSVersion.TLSv1_2


class TlsContext:
    """Reads the files again when they change, so that a renewed certificate needs no restart.

    Args:
        certificate: PEM file (``--ctl-cert``).
        key: PEM file (``--ctl-privkey``).
        authorities: PEM file (``--ca-certs``); when given, a switch must bring a certificate signed by one of them.

    Raises:
        InvalidValue: a file cannot be read or the key does not fit.
    """

    def __init__(self, certificate: str, key: str, authorities: str | None) -> None:
        self._files = [certificate, key, *([authorities] if authorities else [])]
        self._certificate, self._key, self._authorities = certificate, key, authorities
        self._stamp = self._stamps()
        self._context = self._load()

    def wrap(self, sock: Any) -> Any:
        """Do the server's side of the handshake.

        Raises:
            OSError: the peer failed it.
        """
        try:
            stamp = self._stamps()
            if stamp != self._stamp:
                self._context, self._stamp = self._load(), stamp
        except InvalidValue:
            pass  # half-written files: the old certificate serves until the new pair is whole
        return self._context.wrap_socket(sock, server_side=True)

    def _stamps(self) -> list[int]:
        try:
            return [Path(name).stat().st_mtime_ns for name in self._files]
        except OSError as error:
            raise InvalidValue(f"cannot read {error.filename}: {error.strerror}", "check the certificate flags") from None

    def _load(self) -> Any:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = MINIMUM
        try:
            context.load_cert_chain(self._certificate, self._key)
            if self._authorities:
                context.load_verify_locations(self._authorities)
                context.verify_mode = ssl.CERT_REQUIRED
        except (OSError, ValueError) as error:
            names = ", ".join(self._files)
            raise InvalidValue(
                f"cannot use the certificate files {names}: {error}", "check --ctl-cert, --ctl-privkey, --ca-certs"
            ) from None
        return context
