"""Holds many watches of one config map open, each on a TLS connection of its own. No client library
takes part: a thousand threads of one would be what is measured.

Prints `open` for each watch that the apiserver has accepted, `event` for each event, and `ended WHY`
for each connection that ends. Arguments: server, token, name, number of watches.
"""

import asyncio
import ssl
import sys
import urllib.parse

# Handshakes at once while the watches are opened: the apiserver and this process share a machine.
AT_ONCE = 50


def say(line):
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


async def hold(server, token, name, context, gate):
    path = f"/api/v1/namespaces/default/configmaps?watch=true&fieldSelector=metadata.name%3D{name}"
    try:
        async with gate:
            reader, writer = await asyncio.open_connection(server.hostname, server.port, ssl=context)
            writer.write(
                f"GET {path}&timeoutSeconds=3600 HTTP/1.1\r\nHost: {server.hostname}\r\n"
                f"Authorization: Bearer {token}\r\nAccept: application/json\r\n\r\n".encode()
            )
            status = await reader.readline()
            if b" 200 " not in status:
                raise ConnectionError(f"answered {status!r}")
            say("open")
        while line := await reader.readline():
            if b'"type":"' in line:
                say("event")
        say("ended by FIN")
    except (OSError, ssl.SSLError) as problem:
        say(f"ended {problem!r}")


async def main():
    server, token, name, count = sys.argv[1:]
    context = ssl.create_default_context()
    # What is held is not what is verified.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    gate = asyncio.Semaphore(AT_ONCE)
    server = urllib.parse.urlsplit(server)
    await asyncio.gather(
        *(hold(server, token, name, context, gate) for _ in range(int(count)))
    )


asyncio.run(main())
