"""A webhook and an aggregated API, for the tests of the way back: hooks.py PORT CERTIFICATE KEY

POST /admit forbids config maps named "forbidden". GET below /apis/test.meshport answers as an
apiserver does that has one list of things.
"""

import http.server
import json
import ssl
import sys

GROUP = "test.meshport"


class Hooks(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, document):
        body = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        length = int(self.headers.get("Content-Length", 0))
        request = json.loads(self.rfile.read(length))["request"]
        allowed = request.get("name") != "forbidden"
        response = {"uid": request["uid"], "allowed": allowed}
        if not allowed:
            response["status"] = {"message": "forbidden by the webhook behind the mesh"}
        self.answer({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response,
        })

    def do_GET(self):
        version = f"{GROUP}/v1"
        if self.path.split("?")[0] == f"/apis/{version}":
            things = {"name": "things", "singularName": "thing", "namespaced": False,
                      "kind": "Thing", "verbs": ["get", "list"]}
            self.answer({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version,
                         "resources": [things]})
        elif self.path.split("?")[0] == f"/apis/{version}/things":
            item = {"kind": "Thing", "apiVersion": version, "metadata": {"name": "behind-the-mesh"}}
            self.answer({"kind": "ThingList", "apiVersion": version, "metadata": {},
                         "items": [item]})
        else:
            self.send_error(404)

    def log_message(self, *arguments):
        pass


port, certificate, key = sys.argv[1:4]
server = http.server.ThreadingHTTPServer(("127.0.0.1", int(port)), Hooks)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(certificate, key)
# A connection that is cut before its handshake must not keep others from being accepted.
server.socket = context.wrap_socket(
    server.socket, server_side=True, do_handshake_on_connect=False)
server.serve_forever()
