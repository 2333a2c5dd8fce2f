"""Verifies webhooks that the service sends: Standard Webhooks signatures."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import time
from typing import List, Mapping, Optional, Union, cast

from . import models

# As in the libraries of Standard Webhooks: an old event cannot be replayed.
TOLERANCE_SECONDS = 5 * 60


class WebhookVerificationError(Exception):
    """The webhook is not signed with the secret, or its timestamp is too far from now. Answer 400 or 401."""


class Webhook:
    """Verifies webhooks with a secret.

    >>> event = Webhook("whsec_...").verify(body, headers)

    secret: `whsec_` and base64, as the service has it; several, separated by spaces, while a secret is replaced
    """

    def __init__(self, secret: str) -> None:
        try:
            keys = [base64.b64decode(_without_prefix(each), validate=True) for each in secret.split()]
        except binascii.Error:
            keys = []
        if not keys or not all(keys):
            raise ValueError("a webhook secret is whsec_ followed by base64")
        self._keys: List[bytes] = keys

    def verify(
        self, body: Union[bytes, str], headers: Mapping[str, str], *, now: Optional[float] = None
    ) -> models.Event:
        """Returns the event; raises `WebhookVerificationError`.

        body: the exact bytes of the request
        headers: the headers of the request, in any case
        now: the time to compare with, in seconds since 1970; by default the clock
        """
        raw = body.encode() if isinstance(body, str) else bytes(body)
        given = {name.lower(): value for name, value in headers.items()}
        event_id, timestamp = given.get("webhook-id", ""), given.get("webhook-timestamp", "")
        if not event_id or not timestamp or "webhook-signature" not in given:
            raise WebhookVerificationError("webhook-id, webhook-timestamp or webhook-signature is missing")
        clock = time.time() if now is None else now
        # More digits than a time has would only cost time to parse.
        if not (timestamp.isascii() and timestamp.isdecimal() and len(timestamp) <= 12):
            raise WebhookVerificationError("webhook-timestamp is not a number of seconds")
        if abs(clock - int(timestamp)) > TOLERANCE_SECONDS:
            raise WebhookVerificationError("webhook-timestamp is more than five minutes from now")
        signed = f"{event_id}.{timestamp}.".encode() + raw
        signatures = [each.encode() for each in given["webhook-signature"].split()]
        for key in self._keys:
            expected = b"v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest())
            # In constant time, so that a signature cannot be guessed byte by byte.
            if any(hmac.compare_digest(expected, each) for each in signatures):
                return cast(models.Event, json.loads(raw))
        raise WebhookVerificationError("no signature is that of this body under this secret")


def _without_prefix(secret: str) -> str:
    return secret[len("whsec_"):] if secret.startswith("whsec_") else secret
