"""A network between processes of one host that can be cut, silenced, slowed down and garbled."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import threading
from collections.abc import Callable

from graphlearn_dist.errors import RpcError
from graphlearn_dist.rpc.wire.gld1 import HEADER_BYTES, parse_header

Target = Callable[[], "tuple[str, int] | None"]

_CHUNK_BYTES = 16 << 10
_MAX_PAYLOAD_BYTES = 4 << 30


class Proxy:
    """Forwards the frames of any number of connections to any number of servers, in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self._servers: list[asyncio.Server] = []
        self._writers: set[asyncio.StreamWriter] = set()
        self._passing = asyncio.Event()
        self._passing.set()
        self._delay_s = 0.0
        self._garble: random.Random | None = None  # of the next frame

    def open(self, target: Target) -> int:
        """A port behind which is what ``target`` names at the time of each connection; None: it is refused."""

        async def start() -> asyncio.Server:
            return await asyncio.start_server(lambda r, w: self._serve(r, w, target), "127.0.0.1", 0)

        server = asyncio.run_coroutine_threadsafe(start(), self._loop).result()
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    # --- what can be done to it --------------------------------------------------------------------------------

    def cut(self) -> None:
        """Resets all connections that there are."""
        self._loop.call_soon_threadsafe(self._abort_all)

    def silence(self, *, silent: bool) -> None:
        """Whether bytes stay where they are, and connections are made and lead nowhere."""
        self._loop.call_soon_threadsafe(self._passing.clear if silent else self._passing.set)

    def slow_down(self, delay_s: float) -> None:
        """From here on each piece of at most 16 KiB takes that long, one after the other; 0: no more."""
        self._delay_s = delay_s

    def garble(self, rng: random.Random) -> None:
        """Noise takes the place of the next frame's header, or of its head."""
        self._garble = rng

    def close(self) -> None:
        """Ends all connections, and the thread."""

        async def end() -> None:
            self._abort_all()
            for server in self._servers:
                server.close()
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # --- on its thread -----------------------------------------------------------------------------------------

    def _abort_all(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: Target) -> None:
        address = target()
        ends = [writer]
        try:
            self._writers.add(writer)
            if address is None:
                return
            far_reader, far_writer = await asyncio.open_connection(*address)
            ends.append(far_writer)
            self._writers.add(far_writer)
            for end in ends:
                end.transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            pumps = [asyncio.ensure_future(self._pump(reader, far_writer))]
            pumps.append(asyncio.ensure_future(self._pump(far_reader, writer)))
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
        except OSError:  # nobody listens there (any more): the other side sees its connection end, as it should
            pass
        finally:
            for end in ends:
                self._writers.discard(end)
                end.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                data = await reader.readexactly(HEADER_BYTES)
                try:
                    header = parse_header(data, max_payload=_MAX_PAYLOAD_BYTES)
                except RpcError:  # what follows noise is noise
                    return
                head = await reader.readexactly(header.padded_head_len)
                rng, self._garble = self._garble, None
                if rng is not None and head and rng.random() < 0.5:
                    head = rng.randbytes(len(head))
                elif rng is not None:
                    data = rng.randbytes(len(data))
                await self._forward(writer, data + head)
                left = header.inline_len
                while left:
                    data = await reader.read(min(left, _CHUNK_BYTES))
                    if not data:
                        return
                    left -= len(data)
                    await self._forward(writer, data)

    async def _forward(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        if self._delay_s:
            await asyncio.sleep(self._delay_s)
        await self._passing.wait()
        writer.write(data)
        await writer.drain()
