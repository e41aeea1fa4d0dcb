"""Valkey for one machine: hints and queue entries only, so it keeps nothing on disk."""

from __future__ import annotations

import secrets
import signal
import socket
from pathlib import Path
from typing import Final
from urllib.parse import quote

from mailboxd.server_process import ServerProcess
from mailboxd.unprivileged import ServerUser
from mailboxd.wheel_binaries import Programs

START_SECONDS: Final = 30.0
STOP_SECONDS: Final = 10.0
MEMORY_MAX: Final = "256mb"


class EmbeddedValkey:
    """One server on a Unix socket in `run_dir`, or on a loopback port with a password where the path is too long."""

    def __init__(self, data_dir: Path, run_dir: Path | None, user: ServerUser, programs: Programs) -> None:
        self._directory = data_dir / "valkey"
        self._log = data_dir / "logs" / "valkey.log"
        self._run_dir = run_dir
        # A name of this owner's own: a server whose owner was killed removes its socket's path when it ends, maybe only
        # after the next one has made its own.
        self._socket = run_dir / f"valkey-{secrets.token_hex(4)}.sock" if run_dir is not None else None
        self._user = user
        self._programs = programs
        self._process: ServerProcess | None = None
        self._port = 0
        self._password = ""
        self.url = ""

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    @property
    def has_ended(self) -> bool:
        """Whether the server that was started is gone without having been stopped."""
        return self._process is not None and self._process.returncode is not None

    async def start(self) -> None:
        """Return once it takes connections. Nothing of an earlier run is left in it."""
        self._directory.mkdir(mode=0o700, exist_ok=True)
        self._user.own(self._directory)
        if self._run_dir is not None and self._socket is not None:
            for left in self._run_dir.glob("valkey-*.sock"):
                left.unlink(missing_ok=True)
            self.url = f"unix://{quote(str(self._socket))}?db=0"
            door = ["--port", "0", "--unixsocket", str(self._socket), "--unixsocketperm", "700"]
        else:
            if self._process is None:  # one that ended comes back at its old address
                self._port, self._password = free_port(), secrets.token_hex(32)
            self.url = f"redis://:{self._password}@127.0.0.1:{self._port}/0"
            # In a file, since a command line can be read by every user of the machine.
            settings = self._directory / "password.conf"
            settings.touch(mode=0o600)
            settings.write_text(f"requirepass {self._password}\n")
            self._user.own(settings)
            door = [str(settings), "--port", str(self._port), "--bind", "127.0.0.1"]
        self._process = ServerProcess(
            "Valkey",
            [
                str(self._programs.valkey_server()),
                *door,
                *("--dir", str(self._directory)),
                *("--daemonize", "no"),
                *("--save", ""),
                *("--appendonly", "no"),
                # Full means an error to the writer: dropping a queue entry in silence would hide a lost wake.
                *("--maxmemory", MEMORY_MAX),
                *("--maxmemory-policy", "noeviction"),
                *("--loglevel", "warning"),
                *("--databases", "64"),
            ],
            self._user,
            self._log,
            stop_signal=signal.SIGTERM,
        )
        await self._process.until(self._answers, at_most_seconds=START_SECONDS)

    async def stop(self) -> None:
        if self._process is not None:
            await self._process.stop(grace_seconds=STOP_SECONDS)
            self._process = None

    def _answers(self) -> bool:
        family = socket.AF_UNIX if self._socket is not None else socket.AF_INET
        with socket.socket(family) as client:
            client.settimeout(1.0)
            try:
                if self._socket is not None:
                    client.connect(str(self._socket))
                else:
                    client.connect(("127.0.0.1", int(self.url.rpartition(":")[2].partition("/")[0])))
                client.sendall(b"PING\r\n")
                return client.recv(64)[:1] in (b"+", b"-")  # -NOAUTH answers too
            except OSError:
                return False


def free_port() -> int:
    """A loopback port that nobody has now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
