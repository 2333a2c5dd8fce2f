#!/usr/bin/env bash
# Tests clients and examples against a running service: that what is generated belongs to it, that they compile, and that they
# do what they say. It starts no service; run `submission-manager demo` first:
#
#   SM_URL=http://127.0.0.1:8082 SM_TOKEN=smt_... clients/test.sh
#
# Needs bash, curl and python3. Parts that need httpx, mypy, npm and node, or mcs and mono are skipped with a message if these
# are missing; with SM_REQUIRE_CLIENTS=1 that is a failure. Creates only files that git ignores. The languages are tested at
# the same time, because most of it is waiting for the service.
set -euo pipefail
cd "$(dirname "$0")/.."

export SM_URL=${SM_URL:-http://127.0.0.1:8082}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# Compiled Python goes there, too.
export PYTHONPYCACHEPREFIX=$scratch/pycache

part() { printf '== %s\n' "$1"; }
skip() {
  printf 'skipped: %s: %s\n' "$1" "$2"
  [ "${SM_REQUIRE_CLIENTS:-}" != 1 ] || { echo 'SM_REQUIRE_CLIENTS=1, but something was skipped' >&2; exit 1; }
}
have() {
  local tool
  for tool in "$@"; do
    command -v "$tool" >"$scratch/which-$tool" || { missing=$tool; return 1; }
  done
}
# Prints what a command says only if it fails.
quietly() {
  local said
  said=$(mktemp -p "$scratch")
  "$@" >"$said" 2>&1 || { cat "$said"; return 1; }
}
quiet_npm() { npm "$@" --no-package-lock --no-audit --no-fund --loglevel=error >"$scratch/npm" 2>&1; }

generated() {
  part 'generated files are those of this service'
  curl -sSf --max-time 30 "$SM_URL/openapi.json" >"$scratch/openapi.json" ||
    { echo "cannot get $SM_URL/openapi.json; start a service and set SM_URL" >&2; exit 1; }
  python3 clients/generate.py --check "$scratch/openapi.json"
}

examples() {
  part 'curl'
  examples/curl.sh
  part 'Webhook receiver'
  python3 examples/webhook/receiver.py --self-test
}

# Where httpx is installed, which the async client of Python needs, if no Python has it.
venv=$PWD/clients/python/.venv

# Sets `python` to one that has httpx. Debian's package belongs to Debian's Python.
find_httpx() {
  for python in python3 /usr/bin/python3 "$venv/bin/python"; do
    ! "$python" -c 'import httpx' 2>"$scratch/pip" || return 0
  done
  # If it cannot be installed, most likely there is no network.
  if python3 -m venv "$venv" >"$scratch/pip" 2>&1 && "$venv/bin/pip" install --quiet 'httpx<1' >"$scratch/pip" 2>&1; then
    return 0
  fi
  python=python3
  return 1
}

python_client() {
  part 'Python'
  python3 -m compileall -q clients examples -x 'node_modules|/dist/|/[.]venv/'
  export PYTHONPATH=$PWD/clients/python
  $python -m unittest discover -q clients/python/tests
  python3 examples/python/submit.py
  if [ "$httpx" = yes ]; then
    $python examples/python/follow.py
    python3 clients/readme.py python clients/python/README.md "$SM_URL" >"$scratch/readme.py"
    quietly "$python" "$scratch/readme.py"
  fi
}

python_types() {
  have mypy || { skip 'Python types' "there is no $missing"; return 0; }
  [ "$httpx" = yes ] || { skip 'Python types' 'httpx is not installed'; return 0; }
  part 'Python types'
  # Kept, because the first run takes ten times as long.
  MYPYPATH=clients/python mypy --strict --python-executable "$(command -v "$python")" --cache-dir clients/python/.mypy_cache \
    clients/python/submission_manager clients/python/tests examples/python/submit.py examples/python/follow.py \
    examples/webhook/receiver.py
}

typescript_client() {
  local client=$PWD/clients/typescript
  local tsc=$client/node_modules/.bin/tsc
  have npm node || { skip TypeScript "there is no $missing"; return 0; }
  if ! [ -x "$tsc" ] && ! (cd "$client" && quiet_npm install); then
    # Most likely there is no network; that is no error of the client.
    skip TypeScript "npm cannot install the compiler: $(head -n 1 "$scratch/npm")"
    return 0
  fi
  part 'TypeScript'
  (cd "$client" && "$tsc" && node --test --test-reporter=dot)
  # The example's only dependency is the client, so this asks no registry.
  (cd examples/typescript && quiet_npm install --omit=dev) || { cat "$scratch/npm" >&2; exit 1; }
  python3 clients/readme.py ts clients/typescript/README.md "$SM_URL" >examples/typescript/readme.ts
  cd examples/typescript
  "$tsc"
  node dist/submit.js
  quietly node dist/readme.js
}

dotnet_client() {
  have mcs mono || { skip '.NET' "there is no $missing"; return 0; }
  part '.NET'
  compile() { mcs -langversion:7 -warnaserror -r:System.Net.Http "$@"; }
  compile -target:library -out:"$scratch/SubmissionManager.Client.dll" clients/dotnet/src/*.cs
  compile -out:"$scratch/tests.exe" clients/dotnet/src/*.cs clients/dotnet/test/*.cs
  mono "$scratch/tests.exe"
  compile -r:"$scratch/SubmissionManager.Client.dll" -out:"$scratch/submit.exe" examples/csharp/Program.cs
  mono "$scratch/submit.exe"
  python3 clients/readme.py csharp clients/dotnet/README.md "$SM_URL" >"$scratch/Readme.cs"
  # The README has a variable that shows what to do with a value, and does nothing with it.
  mcs -langversion:7 -nowarn:219 -r:System.Net.Http -r:"$scratch/SubmissionManager.Client.dll" -out:"$scratch/readme.exe" "$scratch/Readme.cs"
  quietly mono "$scratch/readme.exe"
}

generated
find_httpx && httpx=yes || { httpx=no; skip 'the async client of Python' "$(tail -n 1 "$scratch/pip")"; }
parts=(examples python_client python_types typescript_client dotnet_client)
for name in "${parts[@]}"; do
  # In a shell of its own: `set -e` does not hold in functions whose result is tested.
  (set -e; "$name") >"$scratch/$name.said" 2>&1 &
  echo $! >"$scratch/$name.pid"
done
failed=
for name in "${parts[@]}"; do
  wait "$(cat "$scratch/$name.pid")" || failed="$failed $name"
  cat "$scratch/$name.said"
done
[ -z "$failed" ] || { echo "failed:$failed" >&2; exit 1; }
echo 'clients and examples do what they say'
