#!/bin/sh
# Runs every test program in BUILD/tests, shows what failed, and adds up what cmocka counts: run.sh BUILD
set -u
build=$1
. "$(dirname "$0")/count.sh"
STATELAB=$(cd "$build" && pwd)/statelab
export STATELAB
for program in "$build"/tests/test_*; do
    case $program in *.*) continue ;; esac
    count "$(basename "$program")" "$program.log" "$program"
done
count_end
