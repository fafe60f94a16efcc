"""`distlab cluster`: an emulated cluster that stays up, to try things and faults on."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.table import Table

from cluster import playground
from cluster.playground import PlaygroundError, PlaygroundSpec
from grader.outcome import EXIT_USER_MISTAKE

cluster_app = typer.Typer(
    help="An emulated cluster to try things and faults on.", no_args_is_help=True
)
console = Console()
_PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}


def _stop(sentence: object) -> NoReturn:
    Console(stderr=True).print(f"distlab: {sentence}", markup=False, highlight=False)
    raise typer.Exit(EXIT_USER_MISTAKE)


def _call(request: dict[str, Any], streams: tuple[int, ...] = ()) -> dict[str, Any]:
    try:
        return playground.call(request, streams)
    except PlaygroundError as error:
        _stop(error)


@cluster_app.command()
def up(
    hosts: Annotated[int, typer.Option(min=1, max=12, help="How many hosts.")] = 4,
    slots: Annotated[int, typer.Option(min=1, max=16, help="Rank slots on each.")] = 1,
    files: Annotated[
        Path | None, typer.Option(help="Folder that the hosts see as /distlab/files (a copy).")
    ] = None,
    block_disk: Annotated[
        bool, typer.Option("--block-disk", help="Disks that can be slowed down; for root.")
    ] = False,
) -> None:
    """Start a cluster that stays up until `down`."""
    if files is not None and not files.is_dir():
        _stop(f"{files} is not a folder")
    began = time.monotonic()
    spec = PlaygroundSpec(hosts, slots, str(files.resolve()) if files else None, block_disk)
    try:
        with console.status("starting hosts and the fault engine"):
            playground.up(spec)
    except PlaygroundError as error:
        _stop(error)
    names = f"node1 to node{hosts}" if hosts > 1 else "node1"
    console.print(f"{names} up in {time.monotonic() - began:.1f} s", markup=False, highlight=False)


@cluster_app.command()
def status() -> None:
    """Show hosts, what they have sent and received, and the faults in force."""
    answer = _call({"do": "status"})
    table = Table(box=None, pad_edge=False)
    for heading in ("host", "address", "state", "processes", "sent", "received"):
        table.add_column(heading, justify="right" if heading in ("sent", "received") else "left")
    for host in answer["hosts"]:
        table.add_row(
            host["name"],
            host["address"],
            "up" if host["alive"] else "down",
            str(host["processes"]),
            f"{host['sent_bytes']:,} B",
            f"{host['received_bytes']:,} B",
        )
    console.print(table)
    console.print(f"faults through the {answer['engine']} engine:", markup=False, highlight=False)
    for line in answer["faults"] or ["none in force"]:
        console.print(f"  {line}", markup=False, highlight=False)


@cluster_app.command("exec", context_settings=_PASS_ON)
def execute(context: typer.Context, host: str) -> None:
    """Run a command on a host: distlab cluster exec node1 -- hostname"""
    command = context.args
    if not command:
        _stop("say what to run, for example `distlab cluster exec node1 -- hostname`")
    streams = (sys.stdin.fileno(), sys.stdout.fileno(), sys.stderr.fileno())
    answer = _call({"do": "exec", "host": host, "command": command}, streams)
    raise typer.Exit(int(answer["status"]))


@cluster_app.command(context_settings=_PASS_ON)
def mpirun(
    context: typer.Context,
    ranks: Annotated[int, typer.Option("-n", min=1, help="How many ranks.")] = 4,
    timeout: Annotated[float, typer.Option(help="Seconds until the job is ended.")] = 60.0,
) -> None:
    """Run an MPI program on the hosts: distlab cluster mpirun -n 4 -- python /distlab/files/x.py"""
    command = context.args
    if not command:
        _stop("say what to run, for example `distlab cluster mpirun -n 4 -- hostname`")
    streams = (sys.stdin.fileno(), sys.stdout.fileno(), sys.stderr.fileno())
    request = {"do": "mpirun", "ranks": ranks, "timeout": timeout, "command": command}
    raise typer.Exit(int(_call(request, streams)["status"]))


@cluster_app.command()
def fault(line: Annotated[str, typer.Argument(help='For example "delay 20ms on all".')]) -> None:
    """Put a fault into force until `heal`."""
    answer = _call({"do": "fault", "line": line})
    console.print(f"in force: {answer['proof']}", markup=False, highlight=False)


@cluster_app.command()
def heal() -> None:
    """Lift every fault in force."""
    _call({"do": "heal"})


@cluster_app.command()
def down() -> None:
    """End the cluster and everything on it."""
    if not playground.is_up():
        _stop("no cluster is up; start one with `distlab cluster up`")
    with suppress(PlaygroundError):
        playground.call({"do": "down"})
    deadline = time.monotonic() + 10
    while playground.is_up() and time.monotonic() < deadline:
        time.sleep(0.05)
