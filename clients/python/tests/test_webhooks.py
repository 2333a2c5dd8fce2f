"""Verification of webhooks, with the example of the Standard Webhooks specification."""

from __future__ import annotations

import base64
import unittest
from typing import Dict, List, Tuple

from submission_manager import Webhook, WebhookVerificationError

SECRET, BODY, NOW = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", b'{"test": 2432232314}', 1614265330
SIGNATURE = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
HEADERS = {"Webhook-Id": "msg_p5jXN8AQM9LWM0D4loKWxJek", "webhook-timestamp": str(NOW), "webhook-signature": SIGNATURE}
OTHER = "whsec_" + base64.b64encode(bytes(24)).decode()


class WebhooksTest(unittest.TestCase):
    def test_signed_ones_are_accepted(self) -> None:
        self.assertEqual(Webhook(SECRET).verify(BODY, HEADERS, now=NOW), {"test": 2432232314})
        self.assertEqual(Webhook(f"{OTHER} {SECRET}").verify(BODY.decode(), HEADERS, now=NOW + 300), {"test": 2432232314})
        several = {**HEADERS, "webhook-signature": f"v1,AAAA v1a,zzz {SIGNATURE}"}
        self.assertTrue(Webhook(SECRET[len("whsec_"):]).verify(BODY, several, now=NOW - 300))

    def test_all_others_are_refused(self) -> None:
        wrong: List[Tuple[str, bytes, Dict[str, str], int]] = [
            (OTHER, BODY, HEADERS, NOW),
            (SECRET, BODY + b" ", HEADERS, NOW),
            (SECRET, BODY, HEADERS, NOW + 301),
            (SECRET, BODY, HEADERS, NOW - 301),
            (SECRET, BODY, {}, NOW),
            (SECRET, BODY, {**HEADERS, "Webhook-Id": "msg_other"}, NOW),
            (SECRET, BODY, {**HEADERS, "webhook-timestamp": "soon"}, NOW),
            (SECRET, BODY, {**HEADERS, "webhook-timestamp": "9" * 5000}, NOW),
            (SECRET, BODY, {**HEADERS, "webhook-signature": "v1,å"}, NOW),
            (SECRET, BODY, {**HEADERS, "webhook-signature": ""}, NOW),
        ]
        for secret, body, headers, now in wrong:
            with self.assertRaises(WebhookVerificationError):
                Webhook(secret).verify(body, headers, now=now)

    def test_secrets_that_cannot_be(self) -> None:
        for secret in ("", " ", "whsec_", "whsec_!", "abc"):
            self.assertRaises(ValueError, Webhook, secret)


if __name__ == "__main__":
    unittest.main()
