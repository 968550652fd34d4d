"""New TLS connections at a fixed rate, each with one request, until a file appears.

    load.py HOST PORT CA RATE STOP

Prints how many there were, which failed and how, and the longest time without an answer.
"""

import collections
import os
import socket
import ssl
import sys
import threading
import time

PATIENCE = 10.0
REQUEST = b"GET /version HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"


class Load:
    """One thread a connection, so that a slow one delays no other."""

    def __init__(self, host, port, authority):
        self.address = (host, port)
        self.context = ssl.create_default_context(cafile=authority)
        self.lock = threading.Lock()
        self.failures = collections.Counter()
        self.answers = []

    def attempt(self):
        begun = time.monotonic()
        try:
            with socket.create_connection(self.address, timeout=PATIENCE) as plain:
                with self.context.wrap_socket(plain, server_hostname=self.address[0]) as tls:
                    tls.sendall(REQUEST)
                    answer = tls.recv(4096)
            if not answer.startswith(b"HTTP/1.1 200"):
                raise OSError("another answer: %r" % answer[:40])
        except OSError as error:
            with self.lock:
                self.failures[type(error).__name__] += 1
            return
        with self.lock:
            self.answers.append((time.monotonic(), time.monotonic() - begun))

    def report(self):
        failed = sum(self.failures.values())
        times = sorted(at for at, _ in self.answers)
        gap = max((b - a for a, b in zip(times, times[1:])), default=0.0)
        slowest = max((took for _, took in self.answers), default=0.0)
        kinds = ", ".join("%s %d" % it for it in sorted(self.failures.items())) or "none"
        print(
            "connections %d, failed %d (%s), slowest %.3f s, longest without an answer %.3f s"
            % (failed + len(times), failed, kinds, slowest, gap)
        )
        return 0 if times else 1


def main():
    host, port, authority, rate, stop = sys.argv[1:]
    load = Load(host, int(port), authority)
    threads = []
    due = time.monotonic()
    while not os.path.exists(stop):
        thread = threading.Thread(target=load.attempt)
        thread.start()
        threads.append(thread)
        due += 1 / float(rate)
        time.sleep(max(0.0, due - time.monotonic()))
    for thread in threads:
        thread.join()
    return load.report()


if __name__ == "__main__":
    sys.exit(main())
