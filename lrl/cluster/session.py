"""This process's place in a Ray cluster: joined, or started for the run and ended with it."""

from __future__ import annotations

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
from collections.abc import Iterator, Mapping
from typing import Any

from lrl.cluster.config import ClusterConfig
from lrl.types import ConfigError

_KNOCK_SECONDS = 0.5
_TOKEN_MODE, _TOKEN = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"
# What Ray leaves goes when the learner is gone, however it went, and Ray has had time to end.
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


class Session:
    """Membership of a cluster, from `join` to `leave`.

    A process that is in a cluster already, because the script asked Ray for it, stays there.

    Args:
        config: Which cluster.
        more_cpus: That a Ray of our own has beside those of the actors.
    """

    def __init__(self, config: ClusterConfig, more_cpus: int = 0) -> None:
        self.config = config
        self._more_cpus = more_cpus
        self.ray = import_ray()
        self._undo = contextlib.ExitStack()

    def join(self) -> None:
        """Join the cluster, or start one.

        Raises:
            ConfigError: There is none at the address, or it has no authentication.
        """
        if self.ray.is_initialized():
            return
        common = {"log_to_driver": False, "logging_level": logging.ERROR}
        with contextlib.ExitStack() as undo, _signals_kept():
            if self.config.address is None:
                settings = self._own(undo)
            else:
                self._check_trust()
                settings = {"address": self.config.address}
            undo.callback(self._end)
            try:
                self.ray.init(**settings, **common)
            except (ConnectionError, RuntimeError, ValueError) as error:
                raise ConfigError(
                    f"data.cluster.address {self.config.address or 'null'}: Ray cannot be "
                    f"{'joined' if self.config.address else 'started'}: {error}"
                ) from error
            self._undo = undo.pop_all()

    def check_head(self) -> None:
        """Knock at the head node's door.

        Raises:
            OSError: Nobody is there.
        """
        host, _, port = self.ray.get_runtime_context().gcs_address.rpartition(":")
        socket.create_connection((host, int(port)), timeout=_KNOCK_SECONDS).close()

    def leave(self) -> None:
        """Leave it again, which ends the actors that were started from here; idempotent."""
        with _signals_kept():
            self._undo.close()

    def _own(self, undo: contextlib.ExitStack) -> dict[str, Any]:
        config = self.config
        # Ray's default, 15, starves actors beside a busy learner.
        settings = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0", **_own_token()}
        undo.enter_context(_variables(settings))
        folder = tempfile.mkdtemp(prefix="lrl-ray-")
        undo.callback(shutil.rmtree, folder, ignore_errors=True)
        tidy = subprocess.Popen(
            ["sh", "-c", _TIDY, folder, "3"], stdin=subprocess.PIPE, start_new_session=True
        )
        undo.callback(tidy.wait)
        undo.callback(tidy.kill)
        needed = math.ceil(config.num_actors * config.num_cpus) + self._more_cpus
        return {
            "address": "local",
            "num_cpus": max(os.cpu_count() or 1, needed),
            "resources": {name: n * config.num_actors for name, n in config.resources.items()},
            "labels": dict(config.labels),
            "include_dashboard": False,
            "object_store_memory": config.object_store_mib * 2**20,
            "_temp_dir": folder,
        }

    def _check_trust(self) -> None:
        is_authenticated = os.environ.get(_TOKEN_MODE) == "token"
        if not (is_authenticated or self.config.i_know_this_network_is_private):
            raise ConfigError(
                f"data.cluster.address {self.config.address} would be joined without "
                f"authentication, and whoever reaches such a cluster runs any code on its nodes: "
                f"set {_TOKEN_MODE}=token on all nodes and here, with the token of `ray "
                "get-auth-token`, or data.cluster.i_know_this_network_is_private to true"
            )

    def _end(self) -> None:
        self.ray.shutdown()


@functools.cache  # Ray reads it once in a process
def _own_token() -> dict[str, str]:
    """Return the token of a Ray of our own, which then asks for it; none if one is set."""
    if os.environ.keys() & {_TOKEN_MODE, _TOKEN, f"{_TOKEN}_PATH"}:
        return {}
    return {_TOKEN: secrets.token_hex(32)}


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    """Keep the handlers of SIGTERM and SIGINT: Ray sets one of its own in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _variables(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables of the environment for Ray, which sets one more itself."""
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
