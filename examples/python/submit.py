#!/usr/bin/env python3
"""Submits an intent to a Submission Manager in Python and follows it, step by step.

    python3 examples/python/submit.py

SM_URL is the address of the service (http://127.0.0.1:8082 by default). With SM_TOKEN, a job is submitted too. Made for
`submission-manager demo`, whose gateways answer as "simulate" in a payload says. Exits with 1 if an answer is not as
promised.
"""

import os
import sys
import time
import uuid
from pathlib import Path
from typing import List, Mapping, Optional

# After `pip install ./clients/python` this line is not needed.
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "clients" / "python"))

from submission_manager import Client, SubmissionManagerError, models  # noqa: E402

URL = os.environ.get("SM_URL") or "http://127.0.0.1:8082"
TOKEN = os.environ.get("SM_TOKEN") or None
# Longer than the deadline of sms.realtime, which is 30 s.
PATIENCE_SECONDS = 60

replayed: List[bool] = []


def seen(_method: str, _url: str, _status: int, headers: Mapping[str, str]) -> None:
    """Records whether the intent existed before, which a header of the answer says."""
    replayed.append(headers.get("idempotent-replayed") == "true")


def expect(promised: bool, what: str) -> None:
    if not promised:
        raise SystemExit(f"not as promised: {what}")


def wait_until_terminal(client: Client, intent_id: str) -> models.Intent:
    """Polls until the intent has ended. A webhook makes polling unnecessary: see examples/webhook."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        intent = client.get_intent(intent_id)
        if intent["status"] != "pending":
            return intent
        expect(time.monotonic() < deadline, f"{intent_id} is still pending after {PATIENCE_SECONDS} s")
        time.sleep(0.2)


def submit(client: Client, run: str) -> None:
    # Your key: submitting the same id again returns the same intent.
    request: models.SubmitRequest = {
        "intentId": f"{run}-hello",
        "submissionTarget": "sms.realtime",
        "payload": {"to": "+46700000001", "message": "Hello"},
    }
    intent = client.submit_intent(request, wait_seconds=10)
    print(f"submitted {intent['intentId']}: {intent['status']}")
    expect(intent["status"] == "accepted" and not replayed[-1], "a new intent that is accepted")

    again = client.submit_intent(request)
    print(f"submitted the same again: it was there before, since {again['createdAt']}")
    expect(again["createdAt"] == intent["createdAt"] and replayed[-1], "the same intent when sent again")

    other = request.copy()
    other["payload"] = {"to": "+46700000001", "message": "Something else"}
    try:
        client.submit_intent(other)
        expect(False, "a conflict")
    except SubmissionManagerError as error:
        print(f"submitted something else under that id: {error}")
        expect(error.code == "idempotency_conflict", "a conflict")
        expect(error.details["conflictingFields"] == ["payload"], "the fields that differ")


def follow(client: Client, run: str) -> None:
    intent_id = f"{run}-stubborn"
    payload = {"to": "+46700000001", "message": "Hello", "simulate": "fail:1"}
    client.submit_intent({"intentId": intent_id, "submissionTarget": "sms.realtime", "payload": payload})
    intent = wait_until_terminal(client, intent_id)
    print(f"{intent_id} has ended: {intent['status']}")
    history = client.get_intent_history(intent_id)
    for attempt in history["attempts"]:
        outcome = attempt.get("outcomeStatus") or attempt.get("error")
        print(f"  attempt {attempt['attemptNumber']} at {attempt['startedAt']}: {outcome}")
    expect(intent["status"] == "accepted", "an intent that is accepted in the end")
    expect(len(history["attempts"]) == 2, "two attempts")

    found = client.list_intents(q=run, limit=10)
    ids = [each["intentId"] for each in found["intents"]]
    print(f"found by how their ids begin: {', '.join(ids)}")
    expect(ids == [f"{run}-hello", intent_id], "both intents in the list")


def submit_job(client: Client, run: str) -> None:
    accepted = client.submit_job({
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
    job = client.get_job(accepted["submission_id"])
    print(f"job {job['job_id']} is {job['status']}, as submission {job['submission_id']}")
    expect(job["job_id"] == f"{run}-job", "the job that was submitted")


def main(url: str, token: Optional[str]) -> None:
    client = Client(url, token, on_answer=seen)
    run = f"example-py-{uuid.uuid4().hex[:12]}"
    submit(client, run)
    follow(client, run)
    if token:
        submit_job(client, run)
    else:
        print("no job: SM_TOKEN is not set")


if __name__ == "__main__":
    try:
        main(URL, TOKEN)
    except (SubmissionManagerError, ValueError) as error:
        sys.exit(str(error))
