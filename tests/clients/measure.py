"""Viewers that share no code with the server or its load test, and measure what they get.

Usage: measure.py URL VIEWERS RATE SECONDS

A process of its own sends comments at a mean RATE and by chance (Poisson), at their scheduled times whatever is
answered; the viewers note how long each took from its scheduled time until they had it. Prints one line of JSON:
{"sent": n, "deliveries": n, "others": comments of others that were received, "p50": ms, "p99": ms}.
"""

import asyncio
import json
import math
import multiprocessing
import random
import sys
import time

import websockets
from websockets.asyncio.client import ClientConnection


class Stamped(ClientConnection):
    """Notes when bytes came, before Python takes its time for what is in them, and for other viewers'."""

    def data_received(self, data):
        self.arrived = time.perf_counter()
        super().data_received(data)


class Figures:
    def __init__(self):
        self.times = []
        self.others = 0


async def view(socket, figures):
    try:
        async for message in socket:
            now = socket.arrived
            if '"type":"comments"' not in message:
                continue
            for comment in json.loads(message)["comments"]:
                if comment["text"].startswith("due "):
                    figures.times.append(now - float(comment["text"][4:]))
                else:
                    figures.others += 1
    except websockets.ConnectionClosed:
        pass


async def send(url, count, rate):
    async with websockets.connect(url, compression=None, max_size=None) as socket:
        due = time.perf_counter()
        for _ in range(count):
            # Comments at even times would fall into step with whatever else is even in the room.
            due += random.expovariate(rate)
            await asyncio.sleep(max(0, due - time.perf_counter()))
            await socket.send(json.dumps({"type": "send", "text": f"due {due:.6f}"}))
        await asyncio.sleep(1)


def send_all(*args):
    asyncio.run(send(*args))


async def main(url, viewers, rate, seconds):
    figures = Figures()
    connect = lambda: websockets.connect(url, compression=None, max_size=None, create_connection=Stamped)
    sockets = [await connect() for _ in range(viewers)]
    for socket in sockets:
        assert json.loads(await socket.recv())["type"] == "hello"
    views = [asyncio.create_task(view(socket, figures)) for socket in sockets]
    count = int(rate * seconds)
    # Both have the same clock: perf_counter is the system's monotonic one.
    sender = multiprocessing.get_context("spawn").Process(target=send_all, args=(url, count, rate))
    sender.start()
    await asyncio.to_thread(sender.join)
    for socket in sockets:
        await socket.close()
    await asyncio.gather(*views)
    assert sender.exitcode == 0, "the sender failed"
    figures.times.sort()
    at = lambda part: figures.times[max(0, math.ceil(part * len(figures.times)) - 1)] * 1000
    told = {"sent": count, "deliveries": len(figures.times), "others": figures.others}
    print(json.dumps(told | {"p50": at(0.5), "p99": at(0.99)}))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])))
