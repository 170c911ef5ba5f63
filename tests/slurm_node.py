"""A real Slurm on this machine alone, for tests: munge, slurmctld, slurmd, and slurmdbd over MariaDB if asked for.

It needs root and Debian's packages, no systemd and no cgroups; memory is watched by sampling. The configuration has to
lie at Slurm's default place, for a Snakemake job step drops every SLURM variable: a machine that has one is left alone.
"""

import os
import shutil
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

ETC = Path("/etc/slurm")
FILES = ("slurm.conf", "gres.conf", "slurmdbd.conf")
DAEMONS = ("munged", "slurmctld", "slurmd")
ACCOUNTING = ("slurmdbd", "mariadbd", "sacctmgr")
CPUS, GPUS = 4, 2
HOST = socket.gethostname().split(".")[0]

CONFIGURATION = """
ClusterName=attnid
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
StateSaveLocation={place}/state
SlurmdSpoolDir={place}/spool
SlurmctldPidFile={place}/slurmctld.pid
SlurmdPidFile={place}/slurmd.pid
SlurmctldLogFile={place}/slurmctld.log
SlurmdLogFile={place}/slurmd.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SchedulerParameters=batch_sched_delay=0,bf_interval=2
MinJobAge=600
KillWait=10
InactiveLimit=0
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
JobAcctGatherParams=OverMemoryKill
GresTypes=gpu
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory={memory} Gres=gpu:{gpus} State=UNKNOWN
PartitionName=main Nodes={host} Default=YES MaxTime=INFINITE DefaultTime=60 State=UP
"""
WITHOUT_ACCOUNTING = "AccountingStorageType=accounting_storage/none\n"
WITH_ACCOUNTING = """
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={ports[2]}
AccountingStoreFlags=job_comment
"""
DATABASE = """
AuthType=auth/munge
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={ports[2]}
SlurmUser=root
PidFile={place}/slurmdbd.pid
LogFile={place}/slurmdbd.log
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={ports[3]}
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm_acct_db
"""
GRANTS = "".join(
    f"CREATE USER slurm@'{host}' IDENTIFIED BY 'slurm'; GRANT ALL ON slurm_acct_db.* TO slurm@'{host}';"
    for host in ("127.0.0.1", "localhost")
)


def missing(accounting: bool) -> str:
    """Why no Slurm can be started here; empty if one can."""
    if os.geteuid() != 0:
        return "starting Slurm needs root"
    absent = [name for name in (*DAEMONS, *(ACCOUNTING if accounting else ())) if not _program(name)]
    if absent:
        return f"not installed: {', '.join(absent)}"
    if any((ETC / name).exists() for name in FILES):
        return f"{ETC} holds the configuration of another Slurm"
    return ""


@contextmanager
def slurm(place: Path, accounting: bool) -> Iterator[None]:
    """A Slurm of one node with make-believe GPUs, stopped and taken away in the end."""
    place.chmod(0o755)
    for name in ("state", "spool"):
        (place / name).mkdir()
    processes: list[int] = []
    try:
        ports = _free_ports(4)
        _configure(place, accounting, ports)
        processes += _start_munge()
        if accounting:
            processes += _start_accounting(place, ports[3])
        for name in ("slurmctld", "slurmd"):
            processes.append(_daemon(place, name))
        _wait("the node to be up", lambda: _output("sinfo", "-h", "-o", "%T") in ("idle", "mixed"))
        yield
    finally:
        subprocess.run(["scancel", "-u", "root", "--quiet"], check=False, timeout=30)
        for process in reversed(processes):
            _stop(process)
        for name in FILES:
            (ETC / name).unlink(missing_ok=True)


def _configure(place: Path, accounting: bool, ports: list[int]) -> None:
    values = {"host": HOST, "place": place, "cpus": CPUS, "gpus": GPUS, "memory": 12_000, "ports": ports}
    for number in range(GPUS):  # character devices, so that CUDA_VISIBLE_DEVICES is set
        os.mknod(place / f"gpu{number}", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    text = (CONFIGURATION + (WITH_ACCOUNTING if accounting else WITHOUT_ACCOUNTING)).format(**values)
    (place / "slurm.conf").write_text(text)
    (place / "gres.conf").write_text(f"NodeName={HOST} Name=gpu File={place}/gpu[0-{GPUS - 1}] Flags=nvidia_gpu_env\n")
    if accounting:
        (place / "slurmdbd.conf").write_text(DATABASE.format(**values))
        (place / "slurmdbd.conf").chmod(0o600)
    for name in FILES:
        if (place / name).exists():
            (ETC / name).symlink_to(place / name)


def _start_munge() -> list[int]:
    """Start munged unless one runs; returns the processes that are ours to stop."""
    if subprocess.run(["munge", "-n"], capture_output=True, check=False).returncode == 0:
        return []
    for directory, mode in (("/run/munge", 0o755), ("/var/log/munge", 0o700), ("/var/lib/munge", 0o700)):
        Path(directory).mkdir(exist_ok=True)
        shutil.chown(directory, "munge", "munge")
        Path(directory).chmod(mode)
    subprocess.run(["runuser", "-u", "munge", "--", _program("munged")], check=True)
    return [_pid(Path("/run/munge/munged.pid"))]


def _start_accounting(place: Path, port: int) -> list[int]:
    database, socket_file = place / "mysql", place / "mysql" / "my.sock"
    install = ["mariadb-install-db", "--no-defaults", "--user=root", f"--datadir={database}", "--skip-test-db"]
    subprocess.run([*install, "--auth-root-authentication-method=socket"], check=True, capture_output=True)
    server = subprocess.Popen(
        [
            *(_program("mariadbd"), "--no-defaults", "--user=root", f"--datadir={database}", f"--socket={socket_file}"),
            *("--bind-address=127.0.0.1", f"--port={port}"),
            *("--innodb-buffer-pool-size=64M", "--innodb-lock-wait-timeout=900"),
        ],
        stdout=(place / "mariadb.log").open("w"),
        stderr=subprocess.STDOUT,
    )
    client = ["mariadb", "--no-defaults", "-S", str(socket_file), "-e"]
    _wait("MariaDB", lambda: subprocess.run([*client, ""], capture_output=True, check=False).returncode == 0)
    subprocess.run([*client, f"CREATE DATABASE slurm_acct_db; {GRANTS}"], check=True)
    keeper = _daemon(place, "slurmdbd")
    _wait(
        "slurmdbd", lambda: subprocess.run(["sacctmgr", "-n", "list", "cluster"], capture_output=True).returncode == 0
    )
    for command in (["cluster", "attnid"], ["account", "default"], ["user", "root", "account=default"]):
        subprocess.run(["sacctmgr", "-i", "add", *command], check=True, capture_output=True)
    return [server.pid, keeper]


def _daemon(place: Path, name: str) -> int:
    subprocess.run([_program(name)], check=True)
    return _pid(place / f"{name}.pid")


def _program(name: str) -> str:
    return shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin") or ""


def _pid(file: Path) -> int:
    _wait(str(file), lambda: file.exists() and file.read_text().strip() != "")
    return int(file.read_text())


def _stop(process: int) -> None:
    """End a process, a child of ours or not."""
    for number, seconds in ((signal.SIGTERM, 20), (signal.SIGKILL, 5)):
        with suppress(ProcessLookupError):
            os.kill(process, number)
        with suppress(TimeoutError):
            _wait(f"process {process} to end", lambda: _ended(process), seconds)
            return


def _ended(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def _wait(what: str, ready: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > end:
            raise TimeoutError(f"waited {seconds:.0f} s for {what}")
        time.sleep(0.2)


def _free_ports(number: int) -> list[int]:
    sockets = [socket.socket() for _ in range(number)]
    try:
        for own in sockets:
            own.bind(("127.0.0.1", 0))
        return [own.getsockname()[1] for own in sockets]
    finally:
        for own in sockets:
            own.close()
