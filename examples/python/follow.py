#!/usr/bin/env python3
"""Submits intents to a Submission Manager and follows the event feed until all of them have ended, with asyncio.

    python3 examples/python/follow.py

SM_URL is the address of the service (http://127.0.0.1:8082 by default), SM_TOKEN its token, if it requires one. The
async client needs httpx.
"""

import asyncio
import os
import sys
import uuid
from pathlib import Path

# After `pip install './clients/python[async]'` this line is not needed.
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "clients" / "python"))

from submission_manager import AsyncClient, SubmissionManagerError  # noqa: E402

URL = os.environ.get("SM_URL") or "http://127.0.0.1:8082"
TOKEN = os.environ.get("SM_TOKEN") or None
COUNT = 20


async def follow(client: AsyncClient, run: str) -> None:
    # The feed starts where it ended before the first submission.
    start = (await client.events.list(after="now"))["nextCursor"]
    async with client.intents.batcher() as batcher:
        for number in range(COUNT):
            await batcher.submit(f"{run}-{number}", "push.realtime", {"token": "device-1", "number": number})

    waiting = {f"{run}-{number}" for number in range(COUNT)}
    async with client.events.stream(after=start) as feed:
        async for event in feed:
            intent = event["intent"]
            if intent["intentId"] not in waiting:
                continue  # somebody else's, or one that came again after a restart
            waiting.remove(intent["intentId"])
            # A real program stores `feed.cursor` together with what it does here.
            print(f"{intent['intentId']} has ended: {intent['status']}")
            if not waiting:
                break
    print(f"all {COUNT} intents have ended; the next cursor is {feed.cursor}")


async def main() -> None:
    async with AsyncClient(URL, TOKEN) as client:
        await asyncio.wait_for(follow(client, f"example-feed-{uuid.uuid4().hex[:12]}"), 60)


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except (SubmissionManagerError, ValueError) as error:
        sys.exit(str(error))
