"""Running a call in another network namespace, without moving the calling thread."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from cluster import linux

T = TypeVar("T")


def _in_thread(body: Callable[[], T]) -> T:
    outcome: list[T] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(body())
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return outcome[0]


def current_netns() -> int:
    """An open file that stands for the calling thread's network namespace."""
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def new_netns() -> int:
    """An open file that keeps a fresh, nameless network namespace alive. Raises OSError."""

    def make() -> int:
        linux.unshare(linux.CLONE_NEWNET)
        return current_netns()

    return _in_thread(make)


def in_netns(netns: int | str | Path, body: Callable[[], T]) -> T:
    """Result of `body` called in a namespace given as an open file, a path, or a name.

    A name is looked up in /run/netns. Sockets that `body` opens stay in that namespace. Raises
    OSError, and whatever `body` raises.
    """

    def enter_and_call() -> T:
        if isinstance(netns, int):
            linux.setns(netns, linux.CLONE_NEWNET)
            return body()
        place = Path("/run/netns") / netns  # an absolute path replaces the folder
        opened = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
        try:
            linux.setns(opened, linux.CLONE_NEWNET)
        finally:
            os.close(opened)
        return body()

    return _in_thread(enter_and_call)
