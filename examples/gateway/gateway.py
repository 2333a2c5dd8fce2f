"""A gateway that prints messages instead of sending them: python3 examples/gateway/gateway.py 9000"""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

answers = {}  # By Idempotency-Key: a message that comes again gets the same answer and is not sent again.


class Gateway(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        key = self.headers["Idempotency-Key"]
        if key not in answers:
            message = json.loads(body)
            print("attempt", self.headers["X-Submission-Attempt"], "of", key, message, flush=True)
            if message.get("to"):
                answers[key] = {"status": "accepted", "gatewayMessageId": f"my-{len(answers) + 1}"}
            else:
                answers[key] = {"status": "rejected", "reason": "invalid_recipient"}
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(answers[key]).encode())


ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Gateway).serve_forever()
