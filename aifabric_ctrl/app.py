"""The application the framework starts: reads settings, opens the store, listens, serves the API.

Imported only when a framework is loaded (see the package's ``__getattr__``).
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket as std_socket
from typing import Any

from aifabric_ctrl.framework import CONF, App, hub, register_openflow_flags
from aifabric_ctrl.model.errors import InvalidValue
from aifabric_ctrl.northbound.api import make_app
from aifabric_ctrl.northbound.token import make_token, token_path
from aifabric_ctrl.runtime import Controller
from aifabric_ctrl.settings import Settings, load_settings
from aifabric_ctrl.southbound.tls import TlsContext
from aifabric_ctrl.store.sqlite import open_store

LOG = logging.getLogger("aifabric_ctrl")
PORT = 6653  # IANA's
OLD_PORT = 6633  # what many switches and Ryu itself still try
API_GREENLETS = 256  # requests at once, long polls included


class AIFabric(App):  # type: ignore[misc]
    """``ryu-manager aifabric_ctrl``."""

    __module__ = "aifabric_ctrl"  # the framework takes only a class that says it belongs to the module it loaded

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Raises SettingsError or StoreError before anything is started."""
        super().__init__(*args, **kwargs)
        register_openflow_flags()
        self._settings = load_settings(os.environ)
        self._tls = _tls()
        if not CONF.verbose:
            LOG.setLevel(self._settings.log_level.upper())
        self._controller: Controller | None = None
        self._api: Any = None

    def start(self) -> Any:
        """Listen first: a port that is taken must stop us before the store or a switch notices."""
        super().start()
        store = open_store(self._settings.state_dir)
        self._controller = controller = Controller(self._settings, store, _bfd_worker(self._settings))
        try:
            self._listen(controller)
        except InvalidValue:
            self.close()
            raise
        main = controller.start()
        self._serve_api(controller)
        return main

    def close(self) -> None:
        """Called by the framework at the end."""
        controller, self._controller = self._controller, None
        if self._api is not None:
            with contextlib.suppress(OSError):
                self._api.close()
        if controller is not None:
            controller.stop()

    def _listen(self, controller: Controller) -> None:
        host, tcp, tls_port = CONF.ofp_listen_host, CONF.ofp_tcp_listen_port, CONF.ofp_ssl_listen_port
        if self._tls is not None:
            port = controller.server.listen(host, tls_port or PORT, self._tls)
            LOG.info("listening for switches on %s port %d (TLS)", host, port)
            if tcp is None:
                return
        port = controller.server.listen(host, tcp or PORT)
        LOG.info("listening for switches on %s port %d", host, port)
        if tcp is None and tls_port is None:
            try:
                controller.server.listen(host, OLD_PORT)
            except InvalidValue as error:
                LOG.warning("%s; switches that use the old port cannot connect", error.what)

    def _serve_api(self, controller: Controller) -> None:
        """Without its port the controller runs on: forwarding matters more than being looked at."""
        if not self._settings.api_enabled:
            return
        from eventlet import wsgi
        from eventlet.green import socket

        host, port = self._settings.api
        family = std_socket.AF_INET6 if ":" in host else std_socket.AF_INET
        listener = socket.socket(family, std_socket.SOCK_STREAM)
        listener.setsockopt(std_socket.SOL_SOCKET, std_socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
            listener.listen(128)
        except OSError as error:
            listener.close()
            text = f"the API cannot listen on {host} port {port} ({error.strerror}); running without it, set AIFABRIC_API"
            controller.note("api_unavailable", text)
            return
        self._api = listener
        token = ""
        try:
            token = make_token(token_path(self._settings))
        except InvalidValue as error:
            controller.note("api_token", f"{error}; the API only reads until that is put right and the controller restarted")
        app = make_app(controller.view, self._settings, wait=hub.sleep, ask=controller.ask, token=token)
        hub.spawn(
            wsgi.server,
            listener,
            app,
            log=logging.getLogger("aifabric_ctrl.api"),
            log_output=False,
            max_size=API_GREENLETS,
            socket_timeout=10,
            debug=False,  # no traceback in an answer
        )
        LOG.info("API on http://%s:%d/api/v1/", f"[{host}]" if ":" in host else host, port)


def _tls() -> TlsContext | None:
    """The TLS set-up that Ryu's flags ask for.

    Raises:
        InvalidValue: half a pair, or a file that cannot be used.
    """
    certificate, key = CONF.ctl_cert, CONF.ctl_privkey
    if bool(certificate) != bool(key):
        raise InvalidValue("--ctl-cert and --ctl-privkey go together", "give both or neither")
    if not certificate:
        if CONF.ofp_ssl_listen_port is not None:
            raise InvalidValue("--ofp-ssl-listen-port needs a certificate", "give --ctl-cert and --ctl-privkey")
        return None
    context = TlsContext(certificate, key, CONF.ca_certs)
    if not CONF.ca_certs:
        LOG.warning("--ca-certs is not given: any switch may connect, TLS only hides what is said")
    return context


def _bfd_worker(settings: Settings) -> Any:
    if not settings.intent.bfd or not settings.ovsdb_remotes():
        return None
    from aifabric_ctrl.southbound.ovsdb import OvsdbWorker

    return OvsdbWorker(settings.ovsdb_remotes())
