#!/bin/sh
# Runs every test program in BUILD/tests and adds up what cmocka reports: run.sh BUILD
set -u
build=$1
passed=0
failed=0
for program in "$build"/tests/test_*; do
    case $program in *.*) continue ;; esac
    log=$program.log
    start=$(date +%s)
    STATELAB=$build/statelab "$program" >"$log" 2>&1
    status=$?
    p=$(grep -c '^\[       OK \]' "$log")
    f=$(grep -c '^\[  FAILED  \] [^0-9]*$' "$log")
    bad=$(grep -c '^\[  FAILED  \].*[a-z_]$' "$log")
    [ "$bad" -gt 0 ] && f=$((bad / 2 > 0 ? bad / 2 : 1))
    [ $status -ne 0 ] && [ "$f" -eq 0 ] && f=1
    passed=$((passed + p))
    failed=$((failed + f))
    printf '%-40s %4d passed %3d failed %4d s\n' "$(basename "$program")" "$p" "$f" $(($(date +%s) - start))
    [ $status -ne 0 ] && sed -n '/ERROR\|FAILED\|runtime error\|Sanitizer\|^\s*#[0-9]\|!=/p' "$log" | head -40
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
