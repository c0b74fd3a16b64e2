"""A server of `/v1/chat/completions` that answers as it is told, in a thread."""

import contextlib
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def completion(text, finish="stop"):
    """The body of an ordinary answer."""
    return {"choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": finish}]}


class ChatServer:
    """`answer` gets the request's body and the number of the request, counted from 0, and gives a text, a
    (status, body, headers) or None for a connection that is cut without an answer."""

    def __init__(self, answer):
        self.answer = answer
        self.requests = []
        """Path, headers and body of each."""
        self.times = []
        self.now = self.most = 0
        self._lock = threading.Lock()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                server._handle(self)

            def log_message(self, *arguments):
                return

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_port}/v1"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,))

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *error):
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def _handle(self, handler):
        body = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
        with self._lock:
            number = len(self.requests)
            self.requests.append((handler.path, dict(handler.headers), body))
            self.times.append(time.monotonic())
            self.now += 1
            self.most = max(self.most, self.now)
        try:
            found = self.answer(body, number)
        finally:
            with self._lock:
                self.now -= 1
        if found is None:
            handler.close_connection = True
            handler.connection.close()
            return
        status, content, headers = (200, completion(found), {}) if isinstance(found, str) else found
        raw = content.encode() if isinstance(content, str) else json.dumps(content).encode()
        with contextlib.suppress(OSError):  # the client may have left
            handler.send_response(status)
            for name, value in {"Content-Length": str(len(raw)), **headers}.items():
                handler.send_header(name, value)
            handler.end_headers()
            handler.wfile.write(raw)
