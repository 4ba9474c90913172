# SPDX-License-Identifier: Apache-2.0
"""Ranks of two nodes that have addresses of their own: network namespaces,
with one link between them and, on the first, one that leads nowhere."""

from __future__ import annotations

import ctypes
import datetime
import logging
import os
import shutil
import signal
import subprocess
import traceback
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from harness import BOUND_S, Logged, Nodes, wait
from models import Holder, Shard, sharded, whole
from shardkeep.torch import Checkpointer, _comm, _links
from torch.distributed.device_mesh import init_device_mesh

NEWUSER, NEWNET = 0x10000000, 0x40000000
#: Where each rank is; and whose memory it restores from.
OF, AWAY = [0, 1, 0, 1], [1, 0, 1, 0]
PORT = 29411        # of a namespace that nobody else is in


class Net(NamedTuple):
    """What stands before the number of an address, and what else differs."""

    way: str
    aside: str
    none: str       # of a network's own address
    bits: int
    first: tuple[str, ...]      # commands for each node

    def __call__(self, before: str, number: int) -> str:
        """As part of a place."""
        at = f"{before}{number}"
        return f"[{at}]" if ":" in at else at


FOUR = Net("10.77.0.", "10.66.0.", "0", 24, ("link set lo up",))
#: Nodes with no address of IPv4, not even for themselves.
SIX = Net("fd77::", "fd66::", "", 64,
          ("link set lo up", "addr del 127.0.0.1/8 dev lo"))


def _unshare(flags: int) -> None:
    if ctypes.CDLL(None, use_errno=True).unshare(flags):
        raise OSError(ctypes.get_errno(), "unshare")


def _ip(*commands: str) -> None:
    for c in commands:
        subprocess.run(["ip", *c.split()], check=True)


def _can_be() -> bool:
    made = "ip link add shardk0 type veth peer name shardk1"
    return bool(shutil.which("unshare") and shutil.which("ip")) and not \
        subprocess.run(["unshare", "-rn", "sh", "-c", made],
                       capture_output=True, check=False).returncode


pytestmark = pytest.mark.skipif(
    not _can_be(), reason="no network namespaces, or none for this user")


# ---- nodes ----

def _first_node(net: Net) -> None:
    """A namespace with none of the machine's networks."""
    uid, gid = os.getuid(), os.getgid()
    _unshare(NEWUSER | NEWNET)
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"),
                       ("gid_map", f"0 {gid} 1")):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as f:
            f.write(text)
    # What leads nowhere is the first that is found.
    _ip(*net.first, "link add aside0 type veth peer name aside1",
        "link set aside0 up", "link set aside1 up",
        "link add way0 type veth peer name way1", "link set way0 up")
    _address(net, net.aside, 1, "aside0")
    _address(net, net.way, 1, "way0")


def _address(net: Net, before: str, number: int, link: str) -> None:
    # IPv6 would wait a second for others that have it.
    _ip(f"addr add {before}{number}/{net.bits} dev {link}" +
        (" nodad" if net is SIX else ""))


def _second_node(move: tuple[int, int], moved: tuple[int, int], net: Net
                 ) -> None:
    """For the first of its ranks: gets way1 from the launcher, which begins
    the others when this node has its addresses."""
    _unshare(NEWNET)
    os.write(move[1], b"1")
    os.read(moved[0], 1)
    # No answer, and no refusal, from where nobody is.
    _ip(*net.first, "link set way1 up")
    _address(net, net.way, 2, "way1")
    _ip("link add none0 type veth", "link set none0 up",
        f"route add {net.aside}{net.none}/{net.bits} dev none0")
    os.write(move[1], b"1")


def _rank(rank: int, nodes: Nodes, net: Net, interface: str | None,
          told: list[str], kind: str) -> None:
    signal.alarm(BOUND_S)
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = f"way{OF[rank]}"
    dist.init_process_group(
        "gloo", init_method=f"tcp://{net(net.way, 1)}:{PORT}", rank=rank,
        world_size=4, timeout=datetime.timedelta(seconds=60))

    class Meeting(_links.Meeting):
        def _lead(self) -> _links.Sockets:
            """Gloo needs it right in any case."""
            kept = os.environ.pop("GLOO_SOCKET_IFNAME")
            if interface:
                os.environ["GLOO_SOCKET_IFNAME"] = interface
            try:
                return super()._lead()
            finally:
                os.environ["GLOO_SOCKET_IFNAME"] = kept

        def _told(self, began: float) -> str:
            said: str = super()._told(began)
            places = [a.rsplit(":", 1)[0] for a in
                      said.partition(" ")[2].split(",")]
            if "[::1]" in places:
                places.remove("[::1]")
            assert places == told
            return said

    _comm.Meeting = Meeting
    _restore_away(nodes, kind)
    dist.barrier()
    dist.destroy_process_group()


def _restore_away(nodes: Nodes, kind: str) -> None:
    rank, logged = dist.get_rank(), Logged()
    logging.getLogger("shardkeep").addHandler(logged)
    mesh = init_device_mesh("cpu", (4,))
    for of, fill in ((OF, True), (AWAY, False)):
        model = Holder({"w": sharded(whole("w", (64, 30)), mesh, (Shard(0),),
                                     fill)})
        with Checkpointer(model, job="far", raising=True, timeout=60,
                          socket=nodes[of[rank]]) as ck:
            assert ck.restore() == (None if fill else 1)
            assert type(ck._comm._links).__name__ == kind
            if fill:
                ck.snapshot(1)
                ck.wait(until="complete")
                continue
            assert ck.report.bytes_remote > 0
            want = whole("w", (64, 30)).chunk(4)[rank]
            assert torch.equal(model.w._local_tensor, want)
    if kind == "Sockets" or rank:
        assert not logged.found, logged.found
    else:
        assert all("go by gloo" in m for m in logged.found)
        assert logged.found


# ---- starting them ----

def _end_as(fn: Any, *args: Any) -> None:
    try:
        fn(*args)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _launch(nodes: Nodes, net: Net, *args: Any) -> None:
    _first_node(net)
    move, moved = os.pipe(), os.pipe()
    pids = []
    for rank in (1, 3, 0, 2):
        pid = os.fork()
        if not pid:
            if rank == 1:
                _end_as(_second, move, moved, net, rank, nodes, net, *args)
            if rank == 3:
                _end_as(_enter, pids[0], rank, nodes, net, *args)
            _end_as(_rank, rank, nodes, net, *args)
        pids.append(pid)
        if rank == 1:
            os.read(move[0], 1)
            _ip(f"link set way1 netns {pid}")
            os.write(moved[1], b"1")
            os.read(move[0], 1)
    codes = wait(pids)
    assert codes == [0] * 4, codes


def _second(move: tuple[int, int], moved: tuple[int, int], net: Net,
            *args: Any) -> None:
    _second_node(move, moved, net)
    _rank(*args)


def _enter(pid: int, *args: Any) -> None:
    """The namespace that the first rank of that node has made."""
    fd = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    if ctypes.CDLL(None, use_errno=True).setns(fd, NEWNET):
        raise OSError(ctypes.get_errno(), "setns")
    os.close(fd)
    _rank(*args)


WAY, ASIDE, LOOPBACK = "10.77.0.1", "10.66.0.1", "127.0.0.1"


@pytest.mark.parametrize("net, host, interface, told, kind", [
    (FOUR, None, None, [WAY, ASIDE, LOOPBACK], "Sockets"),
    (FOUR, "*", None, [ASIDE, WAY, LOOPBACK], "Sockets"),
    (FOUR, None, "way0", [WAY], "Sockets"),
    (FOUR, None, "aside0", [ASIDE], "Gloo"),
    (SIX, None, None, ["[fd77::1]", "[fd66::1]"], "Sockets")],
    ids=["all", "any", "way", "aside", "six"])
def test_the_way_that_leads_there_is_taken(nodes, monkeypatch, net, host,
                                           interface, told, kind):
    """``host``: in place of the store's; ``told``: by rank 0, in order."""
    if kind == "Gloo":
        monkeypatch.setattr(_links, "_TO_MEET", 3.0)
    if host:
        monkeypatch.setattr(_links, "_store_host", lambda store: host)
    pid = os.fork()
    if not pid:
        _end_as(_launch, nodes, net, interface, told, kind)
    assert wait([pid]) == [0]
