// Submits an intent to a Submission Manager in TypeScript and follows it, step by step.
//
// SM_URL is the address of the service (http://127.0.0.1:8082 by default). With SM_TOKEN, a job is submitted too. Made for
// `submission-manager demo`, whose gateways answer as "simulate" in a payload says. Exits with 1 if an answer is not as
// promised.

import { Client, IdempotencyConflict, SubmissionManagerError, type models } from "submission-manager-client";

// The part of Node that is used here; a project would install @types/node.
declare const process: { env: Record<string, string | undefined>; exitCode: number };

const url = process.env["SM_URL"] || undefined;
const token = process.env["SM_TOKEN"] || undefined;
function expect(promised: boolean, what: string): void {
  if (!promised) {
    throw new Error(`not as promised: ${what}`);
  }
}

async function submit(client: Client, run: string): Promise<void> {
  const request: models.SubmitRequest = {
    // Your key: submitting the same id again returns the same intent.
    intentId: `${run}-hello`,
    submissionTarget: "sms.realtime",
    payload: { to: "+46700000001", message: "Hello" },
  };
  const intent = await client.intents.submit(request, { waitSeconds: 10 });
  console.log(`submitted ${intent.intentId}: ${intent.status}`);
  expect(intent.status === "accepted" && !intent.replayed, "a new intent that is accepted");

  const again = await client.intents.submit(request);
  console.log(`submitted the same again: it was there before, since ${again.createdAt}`);
  expect(again.createdAt === intent.createdAt && again.replayed, "the same intent when sent again");

  try {
    await client.intents.submit({ ...request, payload: { to: "+46700000001", message: "Something else" } });
    expect(false, "a conflict");
  } catch (error) {
    if (!(error instanceof IdempotencyConflict)) {
      throw error;
    }
    console.log(`submitted something else under that id: ${error.message}`);
    expect(String(error.details["conflictingFields"]) === "payload", "the fields that differ");
  }
}

async function follow(client: Client, run: string): Promise<void> {
  const intentId = `${run}-stubborn`;
  const payload = { to: "+46700000001", message: "Hello", simulate: "fail:1" };
  // Longer than the deadline of sms.realtime, which is 30 s.
  const options = { timeoutMs: 60_000 };
  const intent = await client.intents.submitAndWait({ intentId, submissionTarget: "sms.realtime", payload }, options);
  console.log(`${intentId} has ended: ${intent.status}`);
  const history = await client.intents.history(intentId);
  for (const attempt of history.attempts) {
    const outcome = attempt.outcomeStatus ?? attempt.error;
    console.log(`  attempt ${attempt.attemptNumber} at ${attempt.startedAt}: ${outcome}`);
  }
  expect(intent.status === "accepted", "an intent that is accepted in the end");
  expect(history.attempts.length === 2, "two attempts");

  const ids: string[] = [];
  for await (const found of client.intents.list({ q: run, limit: 1 })) {
    ids.push(found.intentId);
  }
  console.log(`found by how their ids begin: ${ids.join(", ")}`);
  expect(ids.join() === `${run}-hello,${intentId}`, "both intents in the list");
}

async function submitMany(client: Client, run: string): Promise<void> {
  const batcher = client.intents.batcher();
  const results = [];
  for (let n = 0; n < 1500; n++) {
    const submission = { intentId: `${run}-many-${n}`, submissionTarget: "sms.bulk", payload: { n } };
    results.push((await batcher.submit(submission)).result);
  }
  await batcher.close();
  const stored = await Promise.all(results);
  console.log(`submitted ${stored.length} intents in batches`);
  expect(stored.every(({ replayed }) => !replayed), "every intent of the batches is new");
}

async function submitJob(client: Client, run: string): Promise<void> {
  const accepted = await client.jobs.submit({
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
  const job = await client.jobs.get(accepted.submission_id);
  console.log(`job ${job.job_id} is ${job.status}, as submission ${job.submission_id}`);
  expect(job.job_id === `${run}-job`, "the job that was submitted");
}

async function main(): Promise<void> {
  const client = new Client({ url, token });
  const run = `example-ts-${Date.now().toString(36)}${Math.random().toString(36).slice(2, 8)}`;
  await submit(client, run);
  await follow(client, run);
  await submitMany(client, run);
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
