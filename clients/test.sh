#!/usr/bin/env bash
# Tests clients and examples against a running service: that they are generated from its OpenAPI document, compile, and do
# what they say. It starts no service; run `submission-manager demo` first:
#
#   SM_URL=http://127.0.0.1:8082 SM_TOKEN=smt_... clients/test.sh
#
# Needs bash, curl and python3. Parts that need httpx, mypy, npm and node, or mcs and mono are skipped with a message if these
# are missing; with SM_REQUIRE_CLIENTS=1 that is a failure. Creates only files that git ignores.
set -euo pipefail
cd "$(dirname "$0")/.."

export SM_URL=${SM_URL:-http://127.0.0.1:8082}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# Compiled Python goes there, too.
export PYTHONPYCACHEPREFIX=$scratch/pycache
client=$PWD/clients/typescript

part() { printf '== %s\n' "$1"; }
skip() {
  printf 'skipped: %s: %s\n' "$1" "$2"
  [ "${SM_REQUIRE_CLIENTS:-}" != 1 ] || { echo 'SM_REQUIRE_CLIENTS=1, but something was skipped' >&2; exit 1; }
}
have() {
  local tool
  for tool in "$@"; do
    command -v "$tool" >"$scratch/which" || { missing=$tool; return 1; }
  done
}

part 'generated files are those of this service'
curl -sSf --max-time 30 "$SM_URL/openapi.json" >"$scratch/openapi.json" ||
  { echo "cannot get $SM_URL/openapi.json; start a service and set SM_URL" >&2; exit 1; }
python3 clients/generate.py --check "$scratch/openapi.json"

part 'curl'
examples/curl.sh

part 'Python'
python3 -m compileall -q clients examples -x 'node_modules|/dist/|/[.]packages/'
# The async client needs httpx. If it cannot be installed, most likely there is no network.
python=python3
packages=$PWD/clients/python/.packages
if ! python3 -c 'import httpx' 2>"$scratch/pip" && ! [ -d "$packages/httpx" ]; then
  # Debian's httpx (python3-httpx) belongs to its own Python.
  if /usr/bin/python3 -c 'import httpx' 2>>"$scratch/pip"; then
    python=/usr/bin/python3
  elif ! python3 -m pip install --quiet --target "$packages" 'httpx<1' >>"$scratch/pip" 2>&1; then
    skip 'the async client of Python' "httpx is not installed: $(tail -n 1 "$scratch/pip")"
  fi
fi
export PYTHONPATH=$PWD/clients/python:$packages
$python -m unittest discover -q clients/python/tests
python3 examples/python/submit.py
python3 examples/webhook/receiver.py --self-test
feed() { grep -q '"/v1/events"' "$scratch/openapi.json"; }
if feed && $python -c 'import httpx' 2>"$scratch/pip"; then
  $python examples/python/follow.py
  python3 clients/readme.py python clients/python/README.md "$SM_URL" >"$scratch/readme.py"
  $python "$scratch/readme.py" >"$scratch/said" || { cat "$scratch/said"; exit 1; }
fi

if have mypy; then
  part 'Python types'
  MYPYPATH=$PYTHONPATH mypy --strict --cache-dir "$scratch/mypy" clients/python/submission_manager clients/python/tests \
    examples/python/submit.py examples/python/follow.py examples/webhook/receiver.py
else
  skip 'Python types' "there is no $missing"
fi

quiet_npm() { npm "$@" --no-package-lock --no-audit --no-fund --loglevel=error >"$scratch/npm" 2>&1; }

if ! have npm node; then
  skip TypeScript "there is no $missing"
elif ! [ -x "$client/node_modules/.bin/tsc" ] && ! (cd "$client" && quiet_npm install); then
  # Most likely there is no network; that is no error of the client.
  skip TypeScript "npm cannot install the compiler: $(head -n 1 "$scratch/npm")"
else
  part 'TypeScript'
  tsc=$client/node_modules/.bin/tsc
  (cd "$client" && "$tsc" && node --test --test-reporter=dot)
  # The example's only dependency is the client, so this asks no registry.
  (cd examples/typescript && quiet_npm install --omit=dev || { cat "$scratch/npm" >&2; exit 1; })
  python3 clients/readme.py ts clients/typescript/README.md "$SM_URL" >examples/typescript/readme.ts
  (cd examples/typescript && "$tsc" && node dist/submit.js)
  ! feed || (cd examples/typescript && node dist/readme.js >"$scratch/said") || { cat "$scratch/said"; exit 1; }
fi

if have mcs mono; then
  part 'C#'
  mcs -langversion:7 -warnaserror -r:System.Net.Http -r:System.Runtime.Serialization \
    -out:"$scratch/submit.exe" examples/csharp/Program.cs
  mono "$scratch/submit.exe"
else
  skip 'C#' "there is no $missing"
fi

echo 'clients and examples do what they say'
