"""This process's place in a Ray cluster: joined, or started for the run and ended with it."""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import math
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent import futures
from typing import Any

from lrl.cluster.config import ClusterConfig
from lrl.cluster.head import Head, RayThread
from lrl.processes.ending import ending
from lrl.types import ConfigError

_log = logging.getLogger(__name__)
_KNOCK_SECONDS = 5.0
_JOIN_SECONDS = 20.0
_START_SECONDS = 120.0
_LEAVE_SECONDS = 10.0
_TOKEN_MODE, _TOKEN = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"
# Removes Ray's folder once the learner is gone, however it went, and Ray has had time to end.
_TIDY = 'read -r _; sleep "$1"; rm -rf "$0"'


def import_ray() -> Any:
    """Return the module `ray`.

    Raises:
        ConfigError: It is not installed.
    """
    try:
        import ray
    except ImportError as error:
        raise ConfigError(
            "data.cluster needs Ray, which is not installed: pip install 'lrl[ray]'"
        ) from error
    return ray


def check_trust(ray: Any, config: ClusterConfig) -> None:
    """Check that a cluster that would be joined asks for a token.

    Raises:
        ConfigError: It does not, and the configuration does not say that it need not.
    """
    if config.address is None or ray.is_initialized():
        return
    if not (_has_tokens() or config.i_know_this_network_is_private):
        raise ConfigError(
            f"data.cluster.address {config.address} would be joined without authentication, and "
            f"whoever reaches such a cluster runs any code on its nodes: set {_TOKEN_MODE}=token "
            "on all nodes and here, with the token of `ray get-auth-token`, or "
            "data.cluster.i_know_this_network_is_private to true"
        )


class Session:
    """Membership of a cluster, from `join` to `leave`.

    A process that is in a cluster already, because the script asked Ray for it, stays there.

    Args:
        config: Which cluster.
        more_cpus: That a Ray of our own has beside those of the actors.

    Attributes:
        ray: The module.
        later: Lets the thread that waits for Ray make a call.
        head: What is known of the cluster.
    """

    def __init__(self, config: ClusterConfig, more_cpus: int = 0) -> None:
        self.config = config
        self._more_cpus = more_cpus
        self.ray = import_ray()
        self._undo = contextlib.ExitStack()
        self._thread = RayThread()
        self._has_joined = False
        self.later = self._thread.later
        self.head = Head(self.ray, self.later)

    def join(self) -> None:
        """Begin to join the cluster, or to start one; `leave` follows in any case."""
        self._patience = _START_SECONDS if self.config.address is None else _JOIN_SECONDS
        self._give_up_at = time.monotonic() + self._patience
        self._joining = self.later(self._join)

    def has_joined(self, timeout: float) -> bool:
        """Return whether this process is in the cluster; wait for it for so many seconds at most.

        Raises:
            ConfigError: There is no cluster at the address, or it has no authentication.
        """
        if self._has_joined:
            return True
        try:
            self._joining.result(timeout)
            self._has_joined = True
        except futures.TimeoutError as error:
            if time.monotonic() > self._give_up_at:
                self._give_up()
                raise ConfigError(self._failure(f"it took over {self._patience:g} s")) from error
        finally:
            _take_sigterm_back()
        return self._has_joined

    def leave(self) -> None:
        """Leave it again, which ends the actors that were started from here; idempotent."""
        seconds = 0.0 if self.head.is_lost else _LEAVE_SECONDS
        try:
            self._thread.later(self._undo.close).result(seconds)
            self._thread.end()
        except BaseException as error:
            self._give_up()
            if not isinstance(error, futures.TimeoutError):
                raise
            if not self.head.is_lost:
                _log.warning("Ray has not left the cluster within %g s; nobody waits", seconds)

    def _give_up(self) -> None:
        """Wait for Ray no longer, neither now nor when the process ends, which could crash it."""
        atexit.unregister(self.ray.shutdown)
        ending.skips_libraries = True
        self.later(self._undo.close)  # should Ray come back
        self._thread.end()
        self._undo, self._thread = contextlib.ExitStack(), RayThread()

    def _join(self) -> None:
        if self.ray.is_initialized():
            return
        if (address := self.config.address) is None:
            settings = self._own(self._undo)
        else:
            check_trust(self.ray, self.config)
            self._knock(address)
            settings = {"address": address}
        self._undo.callback(self.ray.shutdown)
        try:
            self.ray.init(**settings, log_to_driver=False, logging_level=logging.ERROR)
        except (OSError, RuntimeError, ValueError, self.ray.exceptions.RayError) as error:
            raise ConfigError(self._failure(str(error))) from error

    def _knock(self, address: str) -> None:
        """Raise an error where nobody listens: Ray would look for somebody for minutes."""
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), timeout=_KNOCK_SECONDS).close()
        except OSError as error:
            raise ConfigError(
                f"data.cluster.address {address}: nobody listens there: {error}"
            ) from error

    def _failure(self, cause: str) -> str:
        address = self.config.address
        if address is None:
            return f"data.cluster.address null: Ray cannot be started: {cause}"
        advice = f"if it asks for a token, set {_TOKEN_MODE}=token here, too"
        if _has_tokens():
            advice = f"the token here has to be that of its nodes ({_TOKEN} or ~/.ray/auth_token)"
        return (
            f"data.cluster.address {address} cannot be joined: {cause}; a head node of Ray has to "
            f"listen there, and {advice}"
        )

    def _own(self, undo: contextlib.ExitStack) -> dict[str, Any]:
        config = self.config
        # Ray's default, 15, starves actors beside a busy learner.
        settings = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0", **_own_token()}
        undo.enter_context(_variables(settings))
        folder = tempfile.mkdtemp(prefix="lrl-ray-")
        undo.callback(shutil.rmtree, folder, ignore_errors=True)
        tidy = undo.enter_context(
            subprocess.Popen(
                ["sh", "-c", _TIDY, folder, "3"], stdin=subprocess.PIPE, start_new_session=True
            )
        )
        undo.callback(tidy.kill)
        needed = math.ceil(config.num_actors * config.num_cpus) + self._more_cpus
        return {
            "address": "local",
            "num_cpus": max(os.cpu_count() or 1, needed),
            "resources": {
                # Ray counts an actor's in parts, but a node's as whole numbers.
                name: math.ceil(n * config.num_actors)
                for name, n in config.resources.items()
            },
            "labels": dict(config.labels),
            "include_dashboard": False,
            "object_store_memory": config.object_store_mib * 2**20,
            "_temp_dir": folder,
        }


def _has_tokens() -> bool:
    return os.environ.get(_TOKEN_MODE) == "token"


@functools.cache  # Ray reads it once in a process
def _own_token() -> dict[str, str]:
    """Return the token of a Ray of our own, which then asks for it; none if one is set."""
    if os.environ.keys() & {_TOKEN_MODE, _TOKEN, f"{_TOKEN}_PATH"}:
        return {}
    return {_TOKEN: secrets.token_hex(32)}


def _take_sigterm_back() -> None:
    """Let Python's handler be called: Ray's own prints the stack and aborts three seconds later."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM) or signal.SIG_DFL)


@contextlib.contextmanager
def _variables(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables of the environment for Ray, which sets RAY_AUTH_MODE itself."""
    before = {name: os.environ.get(name) for name in (*values, _TOKEN_MODE)}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
