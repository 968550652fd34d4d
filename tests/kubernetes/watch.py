"""Watches a config map with the Python client, each watch a thread and a connection of its own.

Prints `INDEX VALUE` for each event. The client is used as its examples show it: no timeout, and a
watch that ends or fails is begun again. Arguments: server, authority, token, name, number of
watches.
"""

import sys
import threading
import time

from kubernetes import client, watch


def follow(index, configuration, name):
    api = client.CoreV1Api(client.ApiClient(configuration))
    while True:
        try:
            events = watch.Watch().stream(
                api.list_namespaced_config_map,
                "default",
                field_selector=f"metadata.name={name}",
            )
            for event in events:
                value = (event["object"].data or {}).get("n", "-")
                sys.stdout.write(f"{index} {value}\n")
                sys.stdout.flush()
        except Exception as problem:  # whatever it was, a controller would begin again
            print(f"watch {index}: {problem!r}", file=sys.stderr, flush=True)
        time.sleep(0.1)


def main():
    server, authority, token, name, count = sys.argv[1:]
    configuration = client.Configuration()
    configuration.host = server
    configuration.ssl_ca_cert = authority
    configuration.api_key = {"authorization": f"Bearer {token}"}
    for index in range(int(count)):
        arguments = (index, configuration, name)
        threading.Thread(target=follow, args=arguments, daemon=True).start()
    threading.Event().wait()


main()
