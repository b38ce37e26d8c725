"""The points of a scene: the calls that one run of it makes, each of which another run lets fail."""

from __future__ import annotations

import errno
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).resolve().parent / "interpose.cpp"

# The errno with which a call fails.
REASONS = {
    "create": errno.ENOSPC, "open": errno.EMFILE, "openat": errno.EMFILE, "fopen": errno.EMFILE, "fopen64": errno.EMFILE,
    "opendir": errno.EMFILE, "fdopendir": errno.ENOMEM, "read": errno.EIO, "pread": errno.EIO, "write": errno.ENOSPC,
    "writev": errno.ENOSPC, "close": errno.EIO, "fclose": errno.EIO, "fwrite": errno.EIO, "fflush": errno.ENOSPC, "fsync": errno.EIO, "sendfile": errno.ENOSPC, "copy_file_range": errno.ENOSPC,
    "ftruncate": errno.ENOSPC, "ftruncate64": errno.ENOSPC, "flock": errno.ENOLCK, "rename": errno.EIO, "renameat2": errno.EIO,
    "mkdir": errno.ENOSPC, "mkdtemp": errno.ENOSPC, "stat": errno.EIO, "lstat": errno.EIO, "fstat": errno.EIO,
    "realpath": errno.EIO, "readlink": errno.EIO, "dup2": errno.EMFILE, "mmap": errno.ENOMEM, "memfd_create": errno.EMFILE,
    "pipe2": errno.EMFILE, "eventfd": errno.EMFILE, "epoll_create1": errno.EMFILE, "epoll_ctl": errno.ENOSPC,
    "fork": errno.EAGAIN, "pthread_create": errno.EAGAIN, "socket": errno.EMFILE, "connect": errno.ENOBUFS, "bind": errno.ENOBUFS,
    "listen": errno.ENOBUFS, "accept4": errno.EMFILE, "setsockopt": errno.ENOBUFS, "sendmsg": errno.ENOBUFS, "send": errno.ENOBUFS,
    "recv": errno.ENOBUFS, "recvmsg": errno.ENOBUFS, "socketpair": errno.EMFILE, "new": errno.ENOMEM,
}  # fmt: skip
WRITES = ("write", "writev")


@dataclass(frozen=True, order=True)
class Point:
    key: str  # process|call|place|count, as the library writes it
    target: str  # for people
    short: bool = False  # the write fails half-way

    @property
    def process(self) -> str:
        return self.key.split("|")[0]

    @property
    def call(self) -> str:
        return self.key.split("|")[1]

    @property
    def reason(self) -> int:
        return REASONS[self.call]

    def __str__(self) -> str:
        count = self.key.split("|")[3]
        half = ", half-way" if self.short else ""
        return f"{self.process} {self.call}{half} {self.target} (place {self.key.split('|')[2]}, call {count})"


def build_library(folder: Path, compiler: str) -> Path:
    """The library that interposes calls, compiled if it is older than its source."""
    library = folder / "interpose.so"
    if not library.exists() or library.stat().st_mtime < SOURCE.stat().st_mtime:
        folder.mkdir(parents=True, exist_ok=True)
        beside = library.with_suffix(".part")
        command = [compiler, "-std=c++20", "-O1", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", str(SOURCE), "-o", str(beside), "-ldl"]
        subprocess.run(command, check=True)
        beside.rename(library)
    return library


def points_of(lines: list[str], folder: Path, short_writes: bool) -> list[Point]:
    """One point per line, without duplicates, in order."""
    found: dict[str, Point] = {}
    for line in lines:
        *head, target = line.split("|", 4)
        key = "|".join(head)
        target = re.sub(r"\d{3,}", "N", target.replace(str(folder), ""))
        found.setdefault(key, Point(key, target))
        if short_writes and head[1] in WRITES:
            found.setdefault(key + " half", Point(key, target, True))
    return list(found.values())
