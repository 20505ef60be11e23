"""A trainer whose round is over, and the next round beside it: `orphan.py SCENARIO ...`, without torch. The test
waits for the lines that it prints."""

import os
import socket
import struct
import sys
import time

import rollout

LONG_MS = 240_000
VALIDATE, GET = 0, 3
MAGIC = 0x3C85F7CE
KEY = b"secret"


def say(text):
    print(text, flush=True)


def read(address, within=5.0):
    """What a newly connected client reads for the key, by TCPStore's protocol; None: no server is there."""
    try:
        with socket.create_connection(address, timeout=within) as stream:
            stream.sendall(struct.pack("<BI", VALIDATE, MAGIC) + struct.pack("<BQ", GET, len(KEY)) + KEY)
            answer = b""
            while len(answer) < 8 or len(answer) < 8 + struct.unpack("<Q", answer[:8])[0]:
                more = stream.recv(4096)
                if not more:
                    return None
                answer += more
            return answer[8:]
    except OSError:
        return None


def retries(host, port, stop):
    """An orphan: it asks for its round's store at the old address, repeatedly."""
    address, tries = (host, int(port)), 0
    while not os.path.exists(stop):
        found = read(address)
        if found is not None:
            raise AssertionError(f"{address} answers {found!r}")
        tries += 1
        say(f"tried {tries}")
        time.sleep(0.02)


def rounds(port, stop):
    """Two rounds, one after the other, at one port. The store of the second is not at the address of the first."""
    connection = rollout.Connection.find()
    cluster = connection.cluster()
    store = cluster.store(connection.namespace, "train", 1)
    store.set([(KEY.decode(), b"first")], LONG_MS)
    first = cluster.gateway(connection.namespace, "train", 1, int(port), LONG_MS)
    before = (first.host, first.port)
    assert read(before) == b"first", before
    say(f"first at {before[0]} {before[1]}")
    first.close()
    while read(before) is not None:
        time.sleep(0.01)
    say("closed")
    cluster.store(connection.namespace, "train", 2).set([(KEY.decode(), b"second")], LONG_MS)
    second = cluster.gateway(connection.namespace, "train", 2, first.port, LONG_MS)
    after = (second.host, second.port)
    assert after[1] == before[1] and after[0] != before[0], (before, after)
    assert after[0].startswith("127."), after
    say(f"second at {after[0]}")
    while not os.path.exists(stop):
        assert read(after) == b"second", after
        time.sleep(0.02)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
    say("done")
