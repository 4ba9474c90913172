# SPDX-License-Identifier: Apache-2.0
"""An agent of any version of the wire, that knows no more than HELLO."""
import os
import socket
import struct
import threading

BYTES, HELLO, EPROTO = 576, 1, 71
HEAD = struct.Struct("<4sHHIiIIQ")


class Stranger:
    """Listens at @path. @speaks: the version that it answers in. @refuses:
    with that sentence, in the version of who asks. @hangs_up: on who greets
    in another."""

    def __init__(self, path, speaks, refuses=None, hangs_up=False):
        self.path, self.speaks = path, speaks
        self.refuses, self.hangs_up = refuses, hangs_up
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.sock.bind(path)
        self.sock.listen()
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def reply(self, asked):
        _, version, _, seq, _, _, _, _ = HEAD.unpack_from(asked)
        if self.hangs_up and version != self.speaks:
            return None
        status, spoken, body = 0, self.speaks, b""
        if self.refuses:
            status, spoken, body = -EPROTO, version, self.refuses.encode()
        head = HEAD.pack(b"SKW1", spoken, HELLO, seq, status, BYTES, 0, 0)
        return (head + body).ljust(BYTES, b"\0")

    def serve(self):
        while True:
            try:
                client, _ = self.sock.accept()
            except OSError:
                return
            with client:
                asked = client.recv(BYTES)
                reply = self.reply(asked) if len(asked) == BYTES else None
                if reply:
                    client.send(reply)
                    client.recv(BYTES)

    def close(self):
        self.sock.shutdown(socket.SHUT_RDWR)
        self.thread.join()
        self.sock.close()
        os.unlink(self.path)
