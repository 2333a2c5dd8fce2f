#!/usr/bin/env bash
# Runs libFuzzer on each target for SECONDS_EACH=30 seconds, or only on the named targets. Starts from the seeds and from
# inputs that earlier runs kept (fuzz/corpus, which may be deleted). Needs cargo-fuzz and the project's own toolchain: the
# code is safe Rust, so no sanitizer is used.
#
#   SECONDS_EACH=300 fuzz/run.sh gateway_answer query
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${SECONDS_EACH:-30}
if ! cargo fuzz --version >/dev/null 2>&1; then
  echo "cargo-fuzz is not installed; install it with: cargo install cargo-fuzz --locked" >&2
  exit 2
fi
targets=("$@")
if [ "${#targets[@]}" -eq 0 ]; then
  mapfile -t targets < <(cd fuzz/fuzz_targets && printf '%s\n' *.rs | sed 's/\.rs$//')
fi
for target in "${targets[@]}"; do
  if [ ! -f "fuzz/fuzz_targets/$target.rs" ]; then
    echo "there is no target '$target'; known are: $(cd fuzz/fuzz_targets && echo *.rs | sed 's/\.rs//g')" >&2
    exit 2
  fi
done

# Builds all targets first, so that the seconds of a target are spent on fuzzing.
cargo fuzz build --sanitizer none

failed=()
for target in "${targets[@]}"; do
  echo "== $target: $seconds seconds"
  mkdir -p "fuzz/corpus/$target"
  log="fuzz/corpus/$target.log"
  # A target ends with its first finding; the others go on.
  if RUST_BACKTRACE=0 cargo fuzz run --sanitizer none "$target" "fuzz/corpus/$target" "fuzz/seeds/$target" -- \
    -max_total_time="$seconds" -max_len=4096 -timeout=10 -rss_limit_mb=2048 -dict=fuzz/words.dict >"$log" 2>&1; then
    grep '^Done ' "$log"
  else
    failed+=("$target")
    # Shows the panic message, timeout or memory limit; not the input, which may be long and binary.
    sed -n '/panicked at/,/^note: /p; /^SUMMARY/p; /^error/p' "$log" | cut -c 1-500 | head -n 20 >&2
  fi
done

if [ "${#failed[@]}" -gt 0 ]; then
  echo >&2
  for target in "${failed[@]}"; do
    input=$(sed -n 's/.*Test unit written to //p' "fuzz/corpus/$target.log" | tail -n 1)
    echo "$target: a property does not hold for ${input:-an input that fuzz/corpus/$target.log may name}" >&2
    echo "  make it small:      cargo fuzz tmin --sanitizer none $target ${input:-<input>}" >&2
    echo "  keep it as a test:  cp <input> fuzz/seeds/$target/<what_it_is>, see cargo test --test fuzz fail, mend the code" >&2
  done
  exit 1
fi
