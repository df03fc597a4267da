#!/bin/sh
# Runs every test program in BUILD/tests, shows what failed, and adds up what cmocka counts: run.sh BUILD
set -u
build=$1
passed=0
failed=0
STATELAB=$(cd "$build" && pwd)/statelab
export STATELAB
for program in "$build"/tests/test_*; do
    case $program in *.*) continue ;; esac
    log=$program.log
    start=$(date +%s)
    "$program" >"$log" 2>&1
    status=$?
    p=$(sed -n 's/^\[  PASSED  \] \([0-9]*\) test(s)\.$/\1/p' "$log" | awk '{ n += $1 } END { print n + 0 }')
    f=$(sed -n 's/^\[  FAILED  \] \([0-9]*\) test(s), listed below:$/\1/p' "$log" | awk '{ n += $1 } END { print n + 0 }')
    # A program that dies, or that leaks at its end, has failed even if no test says so.
    [ "$status" -ne 0 ] && [ "$f" -eq 0 ] && f=1
    passed=$((passed + p))
    failed=$((failed + f))
    printf '%-28s %4d passed %3d failed %5d s\n' "$(basename "$program")" "$p" "$f" $(($(date +%s) - start))
    # What was not looked at is said.
    sed -n 's/^\[  SKIPPED \] \([a-z].*\)$/    skipped: \1/p' "$log" | sort -u
    [ "$status" -ne 0 ] && grep -v '^\[ RUN\|^\[       OK' "$log" | head -60
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
