#!/usr/bin/env python3
"""Receives webhooks of a Submission Manager and accepts only signed ones, with the standard library.

    WEBHOOK_SECRET=whsec_... python3 examples/webhook/receiver.py [port]
    python3 examples/webhook/receiver.py --self-test

It shows what is checked. In production, use a Standard Webhooks library (docs/webhooks.md).
"""

import base64
import hashlib
import hmac
import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Mapping, Set

TOLERANCE_SECONDS = 5 * 60  # as in the libraries: an old event cannot be replayed
MOST_BYTES = 64 * 1024  # an event contains an intent without its payload


def is_signed(secrets: str, headers: Mapping[str, str], body: bytes, now: float) -> bool:
    """Whether one of the secrets signed this body recently. There are several while a secret is replaced."""
    event_id, timestamp = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    if not timestamp.isdecimal() or abs(now - int(timestamp)) > TOLERANCE_SECONDS:
        return False
    for secret in secrets.split():
        key = base64.b64decode(secret[len("whsec_"):] if secret.startswith("whsec_") else secret)
        digest = hmac.new(key, f"{event_id}.{timestamp}.".encode() + body, hashlib.sha256).digest()
        expected = b"v1," + base64.b64encode(digest)
        # Compares in constant time, so that a signature cannot be guessed byte by byte.
        if any(hmac.compare_digest(expected, given.encode()) for given in headers.get("webhook-signature", "").split()):
            return True
    return False


class Receiver(BaseHTTPRequestHandler):
    known: Set[str] = set()  # a real receiver keeps these in durable storage

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > MOST_BYTES:
            return self.answer(413)
        body = self.rfile.read(int(length))
        headers = {name.lower(): value for name, value in self.headers.items()}
        if not is_signed(os.environ["WEBHOOK_SECRET"], headers, body, time.time()):
            return self.answer(401)
        event = json.loads(body)
        # The same event may arrive again, for example if an answer was lost.
        news = "again" if event["eventId"] in self.known else "is"
        self.known.add(event["eventId"])
        print(f"{event['eventId']}: {event['intent']['intentId']} {news} {event['intent']['status']}", flush=True)
        self.answer(204)

    def answer(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()


def self_test() -> None:
    """Checks the example of the Standard Webhooks specification, and changed copies of it."""
    secret, body, now = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", b'{"test": 2432232314}', 1614265330
    signature = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    headers = {"webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek", "webhook-timestamp": str(now), "webhook-signature": signature}
    other = "whsec_" + base64.b64encode(bytes(24)).decode()
    assert is_signed(secret, headers, body, now) and is_signed(f"{other} {secret}", headers, body, now + 300)
    assert is_signed(secret, {**headers, "webhook-signature": f"v1,AAAA {signature}"}, body, now)
    assert not is_signed(other, headers, body, now) and not is_signed(secret, headers, body + b" ", now)
    assert not is_signed(secret, headers, body, now + 301) and not is_signed(secret, {}, body, now)
    assert not is_signed(secret, {**headers, "webhook-id": "msg_other"}, body, now)
    print("signatures are told apart")


if __name__ == "__main__":
    if sys.argv[1:] == ["--self-test"]:
        self_test()
    elif "WEBHOOK_SECRET" not in os.environ:
        sys.exit("WEBHOOK_SECRET is not set; give it the secret that the contract's secretEnv names")
    else:
        ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1]) if sys.argv[1:] else 8090), Receiver).serve_forever()
