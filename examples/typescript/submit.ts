// Submits an intent to a Submission Manager in TypeScript and follows it, step by step.
//
// SM_URL is the address of the service (http://127.0.0.1:8082 by default). With SM_TOKEN, a job is submitted too. Made for
// `submission-manager demo`, whose gateways answer as "simulate" in a payload says. Exits with 1 if an answer is not as
// promised.

import { Client, SubmissionManagerError, type models } from "submission-manager-client";

// The part of Node that is used here; a project would install @types/node.
declare const process: { env: Record<string, string | undefined>; exitCode: number };

const url = process.env["SM_URL"] || undefined;
const token = process.env["SM_TOKEN"] || undefined;
/** Longer than the deadline of sms.realtime, which is 30 s. */
const PATIENCE_MS = 60_000;

/** The body of an answer does not say whether the intent was there before; this header does. */
let replayed = false;

function expect(promised: boolean, what: string): void {
  if (!promised) {
    throw new Error(`not as promised: ${what}`);
  }
}

/** Asks until the intent has ended. A webhook saves the asking: examples/webhook. */
async function untilTerminal(client: Client, intentId: string): Promise<models.Intent> {
  const deadline = Date.now() + PATIENCE_MS;
  for (;;) {
    const intent = await client.getIntent(intentId);
    if (intent.status !== "pending") {
      return intent;
    }
    expect(Date.now() < deadline, `${intentId} is still pending after ${PATIENCE_MS} ms`);
    await new Promise((resolve) => setTimeout(resolve, 200));
  }
}

async function submit(client: Client, run: string): Promise<void> {
  const request: models.SubmitRequest = {
    // Your key: submitting the same id again returns the same intent.
    intentId: `${run}-hello`,
    submissionTarget: "sms.realtime",
    payload: { to: "+46700000001", message: "Hello" },
  };
  const intent = await client.submitIntent(request, { waitSeconds: 10 });
  console.log(`submitted ${intent.intentId}: ${intent.status}`);
  expect(intent.status === "accepted" && !replayed, "a new intent that is accepted");

  const again = await client.submitIntent(request);
  console.log(`submitted the same again: it was there before, since ${again.createdAt}`);
  expect(again.createdAt === intent.createdAt && replayed, "the same intent when sent again");

  try {
    await client.submitIntent({ ...request, payload: { to: "+46700000001", message: "Something else" } });
    expect(false, "a conflict");
  } catch (error) {
    if (!(error instanceof SubmissionManagerError)) {
      throw error;
    }
    console.log(`submitted something else under that id: ${error.status} ${error.code}: ${error.message}`);
    expect(error.code === "idempotency_conflict", "a conflict");
    expect(String(error.details["conflictingFields"]) === "payload", "the fields that differ");
  }
}

async function follow(client: Client, run: string): Promise<void> {
  const intentId = `${run}-stubborn`;
  const payload = { to: "+46700000001", message: "Hello", simulate: "fail:1" };
  await client.submitIntent({ intentId, submissionTarget: "sms.realtime", payload });
  const intent = await untilTerminal(client, intentId);
  console.log(`${intentId} has ended: ${intent.status}`);
  const history = await client.getIntentHistory(intentId);
  for (const attempt of history.attempts) {
    const outcome = attempt.outcomeStatus ?? attempt.error;
    console.log(`  attempt ${attempt.attemptNumber} at ${attempt.startedAt}: ${outcome}`);
  }
  expect(intent.status === "accepted", "an intent that is accepted in the end");
  expect(history.attempts.length === 2, "two attempts");

  const found = await client.listIntents({ q: run, limit: 10 });
  const ids = found.intents.map((each) => each.intentId).join(", ");
  console.log(`found by how their ids begin: ${ids}`);
  expect(ids === `${run}-hello, ${intentId}`, "both intents in the list");
}

async function submitJob(client: Client, run: string): Promise<void> {
  const accepted = await client.submitJob({
    tenant_id: "acme",
    workspace_id: "w1",
    job_id: `${run}-job`,
    idempotency_key: `${run}-job-1`,
    management_node_id: "node-a",
    execution_profile: { queue_name: "short", qos: "normal", account: "research" },
    resource_shape: { cpu: 4, memory_mib: 8192, walltime_seconds: 600 },
    payload_ref: { input_uri: "s3://acme-jobs/1001/input.json" },
    requested_by: { user_id: "user-7" },
  });
  const job = await client.getJob(accepted.submission_id);
  console.log(`job ${job.job_id} is ${job.status}, as submission ${job.submission_id}`);
  expect(job.job_id === `${run}-job`, "the job that was submitted");
}

async function main(): Promise<void> {
  const onAnswer = (_method: string, _url: string, _status: number, headers: Headers) => {
    replayed = headers.get("idempotent-replayed") === "true";
  };
  const client = new Client({ url, token, onAnswer });
  const run = `example-ts-${Date.now().toString(36)}${Math.random().toString(36).slice(2, 8)}`;
  await submit(client, run);
  await follow(client, run);
  if (token) {
    await submitJob(client, run);
  } else {
    console.log("no job: SM_TOKEN is not set");
  }
}

try {
  await main();
} catch (error) {
  console.error(error instanceof SubmissionManagerError ? `${error.status} ${error.code}: ${error.message}` : String(error));
  process.exitCode = 1;
}
