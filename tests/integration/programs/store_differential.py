"""Sends the same random commands to PyTorch's own server and to the one at MASTER_ADDR:MASTER_PORT,
byte for byte, and compares every reply: store_differential.py SEED STEPS. Run as a single worker.
"""
import os
import random
import socket
import struct
import sys

import torch
import torch.distributed as dist

VALIDATES = not torch.__version__.startswith("1.")
WITH_VALIDATE = (
    "VALIDATE SET COMPARE_SET GET ADD CHECK WAIT GETNUMKEYS DELETE_KEY APPEND MULTI_GET MULTI_SET "
    "CANCEL_WAIT PING QUEUE_PUSH QUEUE_POP QUEUE_LEN LIST_KEYS BARRIER"
).split()
BARE = "SET COMPARE_SET GET ADD CHECK WAIT GETNUMKEYS WATCH_KEY DELETE_KEY".split()
COMMANDS = WITH_VALIDATE if VALIDATES else BARE
# GETNUMKEYS and LIST_KEYS count what else is in the store. PyTorch 1 exits on a GET of an absent
# key; its WATCH_KEY, which has no binding for Python, is not served.
LEFT_OUT = {"VALIDATE", "GETNUMKEYS", "LIST_KEYS"} | (set() if VALIDATES else {"GET", "WATCH_KEY"})
CLIENTS = 3
SILENCE = 0.05  # seconds without a byte: there is no reply


def text(value):
    return struct.pack("<Q", len(value)) + value


def connect(address):
    connection = socket.create_connection(address)
    connection.settimeout(SILENCE)
    if VALIDATES:
        connection.sendall(b"\0" + struct.pack("<I", 0x3C85F7CE))
    return connection


def replies(connection):
    seen = b""
    try:
        while piece := connection.recv(65536):
            seen += piece
        return seen + b"<closed>"
    except socket.timeout:
        return seen
    except OSError:
        return seen + b"<closed>"


class Commands:
    def __init__(self, seed):
        self.random = random.Random(seed)

    def key(self):
        return self.random.choice([b"a", b"b", b"c", b"d"])

    def value(self):
        return self.random.choice([b"", b"1", b"7", b"x", b"12abc", b"z" * 5000])

    def draw(self):
        name = self.random.choice([c for c in COMMANDS if c not in LEFT_OUT])
        return name, bytes([COMMANDS.index(name)]) + self.contents(name)

    def contents(self, name):
        if name in ("SET", "APPEND", "QUEUE_PUSH"):
            return text(self.key()) + text(self.value())
        if name == "COMPARE_SET":
            return text(self.key()) + text(self.value()) + text(self.value())
        if name == "ADD":
            return text(b"number") + struct.pack("<q", self.random.randint(-3, 9))
        if name in ("CHECK", "WAIT", "MULTI_GET"):
            keys = self.random.sample([b"a", b"b", b"c", b"d"], self.random.randint(1, 3))
            return struct.pack("<Q", len(keys)) + b"".join(map(text, keys))
        if name == "MULTI_SET":
            count = self.random.randint(0, 3)
            return struct.pack("<Q", count) + b"".join(
                text(self.key()) + text(self.value()) for _ in range(count)
            )
        if name == "CANCEL_WAIT":
            return b""
        if name == "PING":
            return struct.pack("<I", self.random.randint(0, 2**32 - 1))
        if name == "BARRIER":
            return text(b"barrier %d" % self.random.randint(0, 2)) + struct.pack(
                "<q", self.random.randint(1, 3)
            )
        return text(self.key())


def main(seed, steps):
    theirs = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    ours = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    pairs = [(connect(("127.0.0.1", theirs.port)), connect(ours)) for _ in range(CLIENTS)]
    waits = [False] * CLIENTS
    commands = Commands(seed)
    for step in range(steps):
        who = commands.random.randrange(CLIENTS)
        name, request = commands.draw()
        if name == "COMPARE_SET" and any(waits):
            continue  # PyTorch 1 wakes nobody by it, PyTorch 2 also whom it should not
        if waits[who]:
            if not VALIDATES:
                continue
            name, request = "CANCEL_WAIT", bytes([COMMANDS.index("CANCEL_WAIT")])
        for connection in pairs[who]:
            connection.sendall(request)
        for i, (one, other) in enumerate(pairs):
            expected, got = replies(one), replies(other)
            if expected != got:
                sys.exit(
                    f"seed {seed} step {step}: after {name} of client {who}, client {i} got "
                    f"{got[:80]} "
                    f"instead of {expected[:80]}"
                )
            if i == who:
                waits[who] = name in ("WAIT", "BARRIER") and not expected
            elif expected:
                waits[i] = False
    print(f"{steps} steps of seed {seed} agree")


main(int(sys.argv[1]), int(sys.argv[2]))
