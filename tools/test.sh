#!/usr/bin/env bash
# tools/test.sh [FOLDER ...]: tests in two lanes. Those that only compute, in virtual time or none, run at a low
# priority on what the others leave of the processor; the others start processes, and wait for them most of the time.
# The folders are those of the others. Exit status: 0 if everything passed.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly PYTEST=.venv/bin/pytest
readonly COMPUTING=(tests/core tests/papers tests/sim tests/verify)

log=$(mktemp)
nice -n 10 "$PYTEST" "${COMPUTING[@]}" >"$log" 2>&1 &
computing=$!
trap 'kill "$computing" 2>/dev/null; rm -f "$log"' EXIT

"$PYTEST" "$@"
processes_status=$?
printf '\n%s\n' "Beside them: ${COMPUTING[*]}"
wait "$computing"
computing_status=$?
cat "$log"
exit $((processes_status || computing_status))
