#!/usr/bin/env python3
"""Submits an intent to a Submission Manager in Python and follows it, step by step.

    python3 examples/python/submit.py

SM_URL is the address of the service (http://127.0.0.1:8082 by default). With SM_TOKEN, a job is submitted too. Made for
`submission-manager demo`, whose gateways answer as "simulate" in a payload says. Exits with 1 if an answer is not as
promised.
"""

import os
import sys
import uuid
from pathlib import Path
from typing import Optional

# After `pip install ./clients/python` this line is not needed.
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "clients" / "python"))

from submission_manager import Client, IdempotencyConflict, SubmissionManagerError  # noqa: E402

URL = os.environ.get("SM_URL") or "http://127.0.0.1:8082"
TOKEN = os.environ.get("SM_TOKEN") or None


def expect(promised: bool, what: str) -> None:
    if not promised:
        raise SystemExit(f"not as promised: {what}")


def submit(client: Client, run: str) -> None:
    # Your key: submitting the same id again returns the same intent.
    intent_id, payload = f"{run}-hello", {"to": "+46700000001", "message": "Hello"}
    intent = client.intents.submit(intent_id, "sms.realtime", payload, wait_seconds=10)
    print(f"submitted {intent['intentId']}: {intent['status']}")
    expect(intent["status"] == "accepted" and not intent["replayed"], "a new intent that is accepted")

    again = client.intents.submit(intent_id, "sms.realtime", payload)
    print(f"submitted the same again: it was there before, since {again['createdAt']}")
    expect(again["createdAt"] == intent["createdAt"] and again["replayed"], "the same intent when sent again")

    try:
        client.intents.submit(intent_id, "sms.realtime", {**payload, "message": "Something else"})
        expect(False, "a conflict")
    except IdempotencyConflict as error:
        print(f"submitted something else under that id: {error}")
        expect(error.details["conflictingFields"] == ["payload"], "the fields that differ")


def follow(client: Client, run: str) -> None:
    intent_id = f"{run}-stubborn"
    payload = {"to": "+46700000001", "message": "Hello", "simulate": "fail:1"}
    # Longer than the deadline of sms.realtime, which is 30 s.
    intent = client.intents.submit_and_wait(intent_id, "sms.realtime", payload, timeout=60)
    print(f"{intent_id} has ended: {intent['status']}")
    history = client.intents.history(intent_id)
    for attempt in history["attempts"]:
        outcome = attempt.get("outcomeStatus") or attempt.get("error")
        print(f"  attempt {attempt['attemptNumber']} at {attempt['startedAt']}: {outcome}")
    expect(intent["status"] == "accepted", "an intent that is accepted in the end")
    expect(len(history["attempts"]) == 2, "two attempts")

    ids = [each["intentId"] for each in client.intents.list(q=run, limit=1)]
    print(f"found by how their ids begin: {', '.join(ids)}")
    expect(ids == [f"{run}-hello", intent_id], "both intents in the list")


def submit_many(client: Client, run: str) -> None:
    with client.intents.batcher() as batcher:
        futures = [batcher.submit(f"{run}-many-{n}", "sms.bulk", {"to": "+46700000001", "n": n}) for n in range(1500)]
    stored = sum(future.exception() is None for future in futures)
    print(f"submitted {stored} intents in batches")
    expect(stored == len(futures), "every intent of the batches is stored")


def submit_job(client: Client, run: str) -> None:
    accepted = client.jobs.submit({
        "tenant_id": "acme",
        "workspace_id": "w1",
        "job_id": f"{run}-job",
        "idempotency_key": f"{run}-job-1",
        "management_node_id": "node-a",
        "execution_profile": {"queue_name": "short", "qos": "normal", "account": "research"},
        "resource_shape": {"cpu": 4, "memory_mib": 8192, "walltime_seconds": 600},
        "payload_ref": {"input_uri": "s3://acme-jobs/1001/input.json"},
        "requested_by": {"user_id": "user-7"},
    })
    job = client.jobs.get(accepted["submission_id"])
    print(f"job {job['job_id']} is {job['status']}, as submission {job['submission_id']}")
    expect(job["job_id"] == f"{run}-job", "the job that was submitted")


def main(url: str, token: Optional[str]) -> None:
    run = f"example-py-{uuid.uuid4().hex[:12]}"
    with Client(url, token) as client:
        submit(client, run)
        follow(client, run)
        submit_many(client, run)
        if token:
            submit_job(client, run)
        else:
            print("no job: SM_TOKEN is not set")


if __name__ == "__main__":
    try:
        main(URL, TOKEN)
    except (SubmissionManagerError, ValueError) as error:
        sys.exit(str(error))
