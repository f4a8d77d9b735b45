"""A viewer that shares no code with the server: it joins a room in one encoding and prints what it gets.

Usage: check.py URL ENCODING LAST

ENCODING is plain, zstd, br or deflate; LAST is the text after which it leaves. Each frame becomes one line of JSON on
standard output: {"kind": "text" or "binary", "frame": what was in it}. A binary frame is one complete stream of its
encoding; that nothing follows it is checked.
"""

import asyncio
import json
import sys
import zlib

import brotli
import websockets
import zstandard


def inflate(data):
    stream = zlib.decompressobj()
    out = stream.decompress(data) + stream.flush()
    assert stream.eof and not stream.unused_data, "not one complete zlib stream"
    return out


def unzstd(data):
    stream = zstandard.ZstdDecompressor().decompressobj()
    out = stream.decompress(data)
    assert stream.eof and not stream.unused_data, "not one complete zstd frame"
    return out


def unbrotli(data):
    stream = brotli.Decompressor()
    out = stream.process(data)
    assert stream.is_finished(), "not one complete Brotli stream"
    return out


DECODERS = {"zstd": unzstd, "br": unbrotli, "deflate": inflate}


async def main(url, encoding, last):
    # No permessage-deflate: what is compressed here is compressed by the server, once for all.
    async with websockets.connect(url, compression=None, max_size=None, open_timeout=60) as socket:
        async for message in socket:
            kind = "text"
            if isinstance(message, bytes):
                kind = "binary"
                message = DECODERS[encoding](message).decode("utf-8")
            frame = json.loads(message)
            print(json.dumps({"kind": kind, "frame": frame}), flush=True)
            if any(comment["text"] == last for comment in frame.get("comments", [])):
                return
    sys.exit("the server closed the connection before the last comment came")


asyncio.run(main(*sys.argv[1:]))
