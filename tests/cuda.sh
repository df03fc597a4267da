#!/bin/sh
# Runs the tests that need a GPU, then the shorter half of them (STATELAB_REDUCED=1) under compute-sanitizer where it is
# installed, each for at most LIMIT seconds:
# cuda.sh FOLDER (of the programs: build/cuda, or bin/ of a bundle)
set -u
LIMIT=${LIMIT:-600}
PATH=$PATH:/usr/local/cuda/bin
. "$(dirname "$0")/count.sh"
output=$(mktemp)
trap 'rm -f "$output"' EXIT

for program in "$1"/test_cuda*; do
    count "$(basename "$program")" "$output" timeout "$LIMIT" "$program"
done
if command -v compute-sanitizer >/dev/null; then
    export STATELAB_REDUCED=1
    for tool in memcheck racecheck initcheck; do
        for program in "$1"/test_cuda*; do
            count "$tool $(basename "$program")" "$output" \
                timeout "$LIMIT" compute-sanitizer --tool $tool --error-exitcode 9 "$program"
        done
    done
else
    echo "compute-sanitizer is not installed: its checks were skipped"
fi
count_end
