# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable, Sequence, Sized
from typing import Any

REPLICATE: int
SHARD: int
STRIDED_SHARD: int
PARTIAL: int
HOST: int
CUDA: int
MAX_DIMS: int
FLUSH_NEVER: int
KEEP_ALL: int
JOB_NO_REPLICAS: int
JOB_NODE_REPLICAS: int
JOB_VERIFY: int
JOB_READER: int
COPY_FAST: int
COPY_OVERLAP: int
SNAPSHOT_FLUSH: int
SNAPSHOT_NO_FLUSH: int
SNAPSHOT_VERIFY: int
SEALED: int
COMPLETE: int
DURABLE: int
WRITTEN: int
LATEST: int
RESTORE_MISSING_OK: int
RESTORE_EXTRA_OK: int
RESTORE_MEMORY_ONLY: int
RESTORE_DISK_ONLY: int
RESTORE_NO_VERIFY: int
DTYPES: dict[str, int]

Placement = tuple[int, int, int]
"""(kind, tensor dimension, split factor)"""

Part = tuple[Sequence[int], Sequence[int], int, Sequence[int] | None]
"""(offset, size, pointer, strides or None where dense)"""

Tensor = tuple[
    str,                        # name
    int,                        # dtype, of DTYPES
    Sequence[int],              # global shape
    "Mesh | None",
    Sequence[Placement],
    int,                        # pointer
    Sequence[int] | None,       # strides in elements; None: dense
    Sequence[int] | None,       # local shape, to be checked
    tuple[Part, ...] | None,    # instead of placements
] | tuple[str, int, Sequence[int], "Mesh | None", Sequence[Placement], int,
          Sequence[int] | None, Sequence[int] | None,
          tuple[Part, ...] | None,
          int | None]           # CUDA ordinal; None: host memory

Beyond = tuple[str, str, bool, int, tuple[int, ...]]
"""name; "tensor", "blob" or "local"; whether of this rank's number; dtype, of
DTYPES; shape"""

def set_errors(base: type[Exception],
               by_errno: dict[int, type[Exception]]) -> None: ...
def version() -> str: ...

class Client:
    def __init__(self, socket: str | None = None, threads: int = 0,
                 timeout_ms: int = 0, start: bool = True) -> None: ...
    def snapshots(self, job: str | None = None) -> str: ...
    def inspect(self, job: str, step: int = -1, run: int = 0,
                brief: bool = False) -> str: ...
    def instance(self) -> int: ...
    def close(self) -> None: ...

class Mesh:
    def __init__(self, shape: Sequence[int],
                 ranks: Sequence[int] | None = None,
                 names: Sequence[str] | None = None) -> None: ...

class State:
    def __init__(self, client: Client, job: str, rank: int, world: int,
                 run: int = 0, slots: int = 0, flush_every: int = 0,
                 flags: int = 0, keep_last: int = 0, keep_every: int = 0,
                 keep_age: int = 0, keep_bytes: int = 0) -> None: ...
    def tensors(self, descriptions: Sequence[Tensor],
                keep: object = None) -> None: ...
    def describe(self, items: Sequence[tuple[str, Any, str]],
                 usual: Usual | None, odd: set[str], model: dict[str, Any],
                 slowly: Callable[[str, Any, str], Any],
                 keep: object = None) -> tuple[list[Any], list[Any]]: ...
    def blob(self, name: str, buffer: bytearray | memoryview,
             local: bool = False) -> None: ...
    def remove(self, name: str) -> None: ...
    def clear(self) -> None: ...
    def prepare(self, timeout_ms: int = 60000) -> None: ...
    def snapshot(self, step: int, flags: int = 0, wait_ms: int = 0,
                 keep: object = None, stream: int = 0) -> None: ...
    def fence(self, name: str | None = None) -> None: ...
    def fence_stream(self, stream: int) -> None: ...
    def wait(self, step: int, until: int, timeout_ms: int) -> None: ...
    def flush(self, step: int) -> None: ...
    def keep(self, step: int, next: int) -> tuple[int, int]: ...
    def status(self) -> dict[str, int]: ...
    def beyond(self, run: int, step: int, same: bool = False
               ) -> tuple[int, list[Beyond], bool]: ...
    def announce(self) -> tuple[int, int, int]: ...
    def restore(self, step: int = -1, flags: int = 0, timeout_ms: int = 0,
                names: Sequence[str] | None = None, run: int = 0,
                allgather: Callable[[bytes, int], bytes] | None = None,
                world: int = 1,
                exchange: Callable[[list[tuple[int, memoryview]],
                                    list[tuple[int, memoryview]],
                                    int], None] | None = None,
                abort: Callable[[], None] | None = None,
                device: int | None = None,
                comm: Links | None = None, room: bool = True
                ) -> dict[str, Any]: ...
    def begun(self) -> tuple[int, int, int]: ...
    def make_room(self, begun: tuple[int, int, int], newest: bool
                  ) -> None: ...
    def nodes_as(self, other: State) -> None: ...
    def ask(self, step: int, flags: int, wait_ms: int) -> None: ...
    def ask_no_more(self) -> None: ...
    def close(self) -> None: ...

class Links:
    def __init__(self, at: str, rank: int, world: int,
                 secret: str | None = None, timeout_ms: int = 0,
                 tell: Callable[[str], None] | None = None,
                 interfaces: str | None = None) -> None: ...
    @property
    def broken(self) -> bool: ...
    def allgather(self, mine: bytes, timeout_ms: int) -> bytes: ...
    def broadcast(self, root: int, data: bytearray,
                  timeout_ms: int) -> None: ...
    def exchange(self, sends: Sequence[tuple[int, Any]],
                 receives: Sequence[tuple[int, Any]],
                 timeout_ms: int) -> None: ...
    def abort(self) -> None: ...

class Usual:
    def __init__(self, api: object, keys: Callable[[Any], Any],
                 fit: dict[Any, str], plain: tuple[type, ...], sharded: type,
                 kinds: tuple[tuple[type, int], ...],
                 placed: Callable[[str, Any], Any],
                 dtypes: dict[Any, int],
                 samples: tuple[tuple[Any, int, int, int, int, int], ...]
                 ) -> None: ...
    def parts(self, tensors: list[Any], begin: int, end: int,
              others: Callable[[Any], list[Any]]) -> list[Any]: ...

class Watch:
    def __init__(self, places: Sequence[tuple[Any, str]],
                 counts: Sequence[tuple[Sized, int]],
                 held: Sequence[tuple[object,
                                      type | tuple[str, ...] | None]],
                 usual: Usual | None,
                 local_of: Callable[[Any], object]) -> None: ...
    def holds(self) -> bool: ...
