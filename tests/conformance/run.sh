#!/usr/bin/env bash
# Tests a running demo against its OpenAPI document with schemathesis. A well-formed request may be refused because it names
# an unknown target or node; every other difference is an error.
set -euo pipefail
cd "$(dirname "$0")/../.."
venv=target/schemathesis
[ -x "$venv/bin/schemathesis" ] || { python3 -m venv "$venv" && "$venv/bin/pip" install --quiet 'schemathesis==4.*'; }
cargo build --release --locked
log=$(mktemp)
target/release/submission-manager demo --listen 127.0.0.1:18099 >"$log" 2>&1 &
demo=$!
trap 'kill "$demo"; rm -f "$log"' EXIT
until grep -q smt_ "$log"; do kill -0 "$demo"; sleep 0.1; done
token=$(grep -o 'smt_[A-Za-z0-9_-]*' "$log" | head -1)
PYTHONPATH=tests/conformance SCHEMATHESIS_HOOKS=hooks "$venv/bin/schemathesis" run http://127.0.0.1:18099/openapi.json -H "Authorization: Bearer $token" \
  --checks all --exclude-checks positive_data_acceptance --max-examples "${EXAMPLES:-100}"
