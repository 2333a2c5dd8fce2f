#!/usr/bin/env bash
# Calls a Submission Manager with curl, step by step. Prints each call and its answer, and exits with 1 if an answer is
# not as promised.
#
#   examples/curl.sh
#
# SM_URL is the address of the service (http://127.0.0.1:8082 by default). With SM_TOKEN, a job is submitted too. Made for
# `submission-manager demo`.
set -euo pipefail

url=${SM_URL:-http://127.0.0.1:8082}
url=${url%/}
run="example-curl-$(date +%s)-$$-$RANDOM"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# The token is in a file that only this user can read, because arguments are visible to everyone.
auth=()
if [ -n "${SM_TOKEN:-}" ]; then
  (umask 077 && printf 'header = "Authorization: Bearer %s"\n' "$SM_TOKEN" >"$scratch/auth")
  auth=(--config "$scratch/auth")
fi

fail() { printf 'not as promised: %s\n' "$1" >&2; exit 1; }

# call STATUS PATH [curl's arguments...]: makes a call, shows it and its answer, and expects that status.
call() {
  local expected=$1 path=$2 status
  shift 2
  status=$(curl -sS --max-time 40 ${auth[@]+"${auth[@]}"} -D "$scratch/headers" -o "$scratch/body" -w '%{http_code}' "$url$path" "$@") ||
    { printf '%s does not answer; set SM_URL to the address of the service\n' "$url" >&2; exit 1; }
  printf '  %s %s\n' "$status" "$(cat "$scratch/body")"
  [ "$status" = "$expected" ] || fail "$path was answered $status, not $expected"
}

# field NAME: a string of that name in the answer. Enough for a script; programs parse JSON.
field() { sed -n "s/.*\"$1\":\"\([^\"]*\)\".*/\1/p" "$scratch/body"; }
body_has() { grep -qF -- "$1" "$scratch/body" || fail "the answer has no $1"; }
replayed() { grep -qi '^idempotent-replayed: true' "$scratch/headers"; }

hello="{\"intentId\":\"$run\",\"submissionTarget\":\"sms.realtime\",\"payload\":{\"to\":\"+46700000001\",\"message\":\"Hello\"}}"

echo 'Submit an intent and wait for its first attempt:'
call 200 '/v1/intents?waitSeconds=10' -H 'Content-Type: application/json' -d "$hello"
[ "$(field status)" = accepted ] || fail 'the intent is not accepted'
replayed && fail 'the answer says that a new intent existed before'

echo 'Submit the same again; nothing is sent twice:'
call 200 /v1/intents -H 'Content-Type: application/json' -d "$hello"
replayed || fail 'the answer does not say that the request was repeated'

echo 'Submit something else under that id:'
call 409 /v1/intents -H 'Content-Type: application/json' -d "${hello/Hello/Good bye}"
body_has '"code":"idempotency_conflict"'
body_has '"conflictingFields":["payload"]'

echo 'See every attempt:'
call 200 "/v1/intents/$run/history"
body_has '"attemptNumber":1'

echo 'Find it by how its id begins:'
call 200 "/v1/intents?q=$run&limit=10"
body_has "\"intentId\":\"$run\""

echo 'Ask for one that is not there:'
call 404 "/v1/intents/$run-nobody"
body_has '"code":"not_found"'

if [ -n "${SM_TOKEN:-}" ]; then
  echo 'Submit a job of tenant acme:'
  call 202 /v1/jobs -H 'Content-Type: application/json' -d @- <<JSON
{"tenant_id": "acme", "workspace_id": "w1", "job_id": "$run", "idempotency_key": "$run-1",
 "management_node_id": "node-a",
 "execution_profile": {"queue_name": "short", "qos": "normal", "account": "research"},
 "resource_shape": {"cpu": 4, "memory_mib": 8192, "walltime_seconds": 600},
 "payload_ref": {"input_uri": "s3://acme-jobs/1001/input.json"},
 "requested_by": {"user_id": "user-7"}}
JSON
  job=$(field submission_id)
  echo 'Look it up:'
  call 200 "/v1/jobs/$job"
  body_has "\"job_id\":\"$run\""
else
  echo 'No job: SM_TOKEN is not set.'
fi

form='{"client_slug":"acme","channel":"form","payload":{"email":"ann@example.com","name":"Ann","message":"Hello"}}'
echo 'Hand a form to the inbox, twice under one key; it is kept once:'
call 202 /v1/inbox/submissions -H 'Content-Type: application/json' -H "Idempotency-Key: $run" -d "$form"
kept=$(field id)
call 202 /v1/inbox/submissions -H 'Content-Type: application/json' -H "Idempotency-Key: $run" -d "$form"
{ replayed && [ "$(field id)" = "$kept" ]; } || fail 'the answer does not say that the request was repeated'

echo 'See what came in:'
call 200 "/v1/inbox/submissions/$kept"
body_has '"email":"ann@example.com"'

echo 'All as promised.'
