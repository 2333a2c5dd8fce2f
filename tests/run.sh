#!/usr/bin/env bash
# Runs all tests: 'make test' calls it. The tests start programs such as HAProxy and Chromium. Those that are missing are
# installed with apt, by root or by sudo without a password. Where that is not possible, the tests that need them are left out
# and listed at the end; with CI=true that is a failure.
set -euo pipefail
cd "$(dirname "$0")/.."
# Debian installs haproxy in /usr/sbin, which is often not in the PATH of users.
export PATH=$PATH:/usr/sbin

# Each program, the packages of Debian that have it, and the tests that need it (as names of tests begin).
programs='
curl       curl                                           clients:: documents::
openssl    openssl                                        documents::
sqlite3    sqlite3                                        documents::
python3    python3                                        clients:: documents:: guides::
haproxy    haproxy                                        fleet:: documents::the_documented_fleet_of_processes_runs
chromium   chromium                                       browser::
chromedriver chromium-driver                              browser::
promtool   prometheus                                     deployment::the_alerts_fire_when_they_should
systemd-analyze systemd                                   packaging::systemd_accepts_the_unit
mypy       mypy                                           -
npm        nodejs,npm                                     oidc::browser::
npm        nodejs,npm                                     -
mcs        mono-mcs                                       -
mono       mono-runtime,libmono-system-net-http4.0-cil -
'

missing_programs() {
  while read -r program packages tests; do
    [ -z "$program" ] || command -v "$program" >/dev/null || echo "$program $packages $tests"
  done <<<"$programs"
}

# Prints the command that installs packages: with sudo for users who may use it without a password.
installer() {
  command -v apt-get >/dev/null || return 1
  if [ "$(id -u)" = 0 ]; then echo 'apt-get'; else sudo -n true 2>/dev/null && echo 'sudo -n apt-get'; fi
}

missing=$(missing_programs)
if [ -n "$missing" ] && apt=$(installer); then
  packages=$(awk '{print $2}' <<<"$missing" | tr ',\n' '  ')
  echo "installing what the tests need with '$apt install': $packages"
  # Without the network, the tests run without these programs.
  { $apt update -q && DEBIAN_FRONTEND=noninteractive $apt install -qy --no-install-recommends $packages; } >&2 || true
  missing=$(missing_programs)
fi

skips=()
while read -r program _ tests; do
  for test in $tests; do
    [ "$test" = - ] || skips+=(--skip "$test")
  done
done <<<"$missing"

# The tests in the browser also check every page with axe-core, which comes from npm. Without the network they run without it.
if [ -z "${SM_AXE:-}" ] && command -v npm >/dev/null; then
  mkdir -p target/axe
  [ -f target/axe/package/axe.min.js ] ||
    (cd target/axe && npm pack --silent axe-core@4 >/dev/null && tar -xzf axe-core-4*.tgz package/axe.min.js) || true
  if [ -f target/axe/package/axe.min.js ]; then export SM_AXE=$PWD/target/axe/package/axe.min.js; fi
fi

# The library's tests come first: they are quick and find most errors.
cargo test --locked --lib --bins
cargo test --locked --test layers --test fuzz
cargo test --locked --doc
cargo test --locked --test service -- ${skips[@]+"${skips[@]}"}

if [ -z "${SM_AXE:-}" ]; then
  echo 'not run: the check of every page with axe-core, which could not be fetched with npm'
  [ "${CI:-}" != true ] || exit 1
fi
[ -n "$missing" ] || exit 0
echo 'not run:'
while read -r program packages tests; do
  [ "$tests" != - ] || tests='parts of clients:: (types, TypeScript or .NET)'
  echo "  $tests ($program is missing; Debian package ${packages//,/ })"
done <<<"$missing"
if [ "${CI:-}" = true ]; then
  echo 'with CI=true every test must run' >&2
  exit 1
fi
