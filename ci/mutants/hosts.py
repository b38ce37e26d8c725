"""Starts the processes of a run on two hosts of two ranks each, on this machine: over sockets, or by mpirun.

    command, variables = by_mpirun(["lockstep", "run", ...], folder)

Under mpirun each host is a daemon of Open MPI with a host name of its own. In place of ssh, mpirun calls a script that starts it here.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
from pathlib import Path

RANKS = 4
BY_SOCKETS = """
for rank in 1 2 3; do RANK=$rank "$@" > /dev/null 2>&1 & done
RANK=0 "$@"; code=$?; wait; exit $code
"""
AGENT = """#!/bin/sh
while case "$1" in -*) true ;; *) false ;; esac; do shift; done
name=$1
shift
exec unshare --uts sh -c "hostname $name; $*"
"""
# The ranks go to the hosts in turn; by_sockets gives each host two in a row. The loopback interface joins the hosts, also on a machine
# without a network. A process that waits in MPI gives up its core.
MPIRUN = ["mpirun", "--allow-run-as-root", "--quiet", "--oversubscribe", "--bind-to", "none", "--host", "first:2,second:2",
          "--map-by", "node", "-n", str(RANKS), "--mca", "mpi_yield_when_idle", "1", "--mca", "plm_rsh_no_tree_spawn", "1", "--mca", "oob_tcp_if_include", "lo",
          "--mca", "btl_tcp_if_include", "lo", "--mca", "btl", "self,vader,tcp"]  # fmt: skip


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def by_sockets(command: list[str], folder: Path) -> tuple[list[str], dict[str, str]]:
    variables = {"WORLD_SIZE": str(RANKS), "LOCKSTEP_HOSTS": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    return ["sh", "-c", BY_SOCKETS, "sh", *command], variables


def by_mpirun(command: list[str], folder: Path) -> tuple[list[str], dict[str, str]]:
    agent = folder / "agent"
    agent.write_text(AGENT)
    agent.chmod(0o755)
    return [*MPIRUN, "--mca", "plm_rsh_agent", str(agent), *command], {}


def lacks_mpirun(program: Path, isolated: bool) -> str:
    """Why no case can run under mpirun; empty if it can."""
    if shutil.which("mpirun") is None:
        return "there is no mpirun"
    if not isolated:  # processes of a run that hangs could not be ended
        return "it needs namespaces (unshare)"
    said = subprocess.run([program, "doctor"], capture_output=True, text=True).stdout
    return "" if "Open MPI" in said else "this build has no Open MPI"
