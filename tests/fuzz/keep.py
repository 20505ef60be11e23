"""Packs the inputs of a directory into corpus/TARGET.gz, which `cargo test -p rollout-fuzz` replays: keep.py
TARGET DIRECTORY.

It takes the smallest inputs first, up to BYTES_MAX in total. The directory is the output of libFuzzer's -merge=1
for a target's corpus.
"""

import gzip
import pathlib
import struct
import sys

BYTES_MAX = 256 << 10


def main() -> None:
    target, directory = sys.argv[1], pathlib.Path(sys.argv[2])
    inputs = sorted({file.read_bytes() for file in directory.iterdir()}, key=lambda i: (len(i), i))
    kept, total = [], 0
    for one in inputs:
        total += len(one)
        if total > BYTES_MAX:
            break
        kept.append(struct.pack("<I", len(one)) + one)
    packed = pathlib.Path(__file__).parent / "corpus" / f"{target}.gz"
    packed.write_bytes(gzip.compress(b"".join(kept), mtime=0))
    print(f"{target}: {len(kept)} of {len(inputs)} inputs, {packed.stat().st_size} bytes")


main()
