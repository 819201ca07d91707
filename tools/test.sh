#!/usr/bin/env bash
# tools/test.sh [FOLDER ...]: tests in three lanes side by side. Tests that start processes wait for them most of the
# time, so there are two lanes of those; FOLDERs come at the end of the first, which is the one that is shown. Tests that
# only compute, in virtual time or none, run at a low priority on what is left of the processor. The two other lanes are
# shown when they are over. Exit status: 0 if everything passed.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly PYTEST=.venv/bin/pytest LONGEST=tests/hosts/test_operator_jobs.py
readonly STARTING=(tests/unit tests/hosts "--ignore=$LONGEST")
COMPUTING=()
for folder in tests/*/; do
    [[ $folder =~ ^tests/(unit|hosts|e2e|__pycache__)/$ ]] || COMPUTING+=("${folder%/}")
done
readonly COMPUTING

logs=$(mktemp -d)
"$PYTEST" "${STARTING[@]}" >"$logs/starting" 2>&1 &
starting=$!
nice -n 10 "$PYTEST" "${COMPUTING[@]}" >"$logs/computing" 2>&1 &
computing=$!
end() { # what is under way ends what it has started, and is waited for
    kill "$starting" "$computing" 2>/dev/null
    wait
    rm -rf "$logs"
}
trap end EXIT

status=0
"$PYTEST" "$LONGEST" "$@" || status=1
for lane in starting computing; do
    printf '\nBeside it:\n'
    wait "${!lane}" || status=1
    cat "$logs/$lane"
done
exit "$status"
