# SPDX-License-Identifier: Apache-2.0
"""A terminal for what is tested on one."""
import fcntl
import os
import pty
import struct
import subprocess
import termios


def run(command: list[str], env: dict[str, str], rows: int, columns: int,
        both: bool = True) -> tuple[int, str]:
    """How it ended and what it printed there; ``both``: errors, too."""
    terminal, other = pty.openpty()
    fcntl.ioctl(other, termios.TIOCSWINSZ,
                struct.pack("4H", rows, columns, 0, 0))
    with subprocess.Popen(command, stdout=other,
                          stderr=other if both else None, env=env) as p:
        os.close(other)
        said = b""
        try:
            while part := os.read(terminal, 65536):
                said += part
        except OSError:     # the other end is closed
            pass
        code = p.wait()
    os.close(terminal)
    return code, said.decode()
