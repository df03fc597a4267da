# Counts tests, for run.sh and cuda.sh: adds up what cmocka says at the end of each program, and shows what failed.
passed=0
failed=0
skipped=0

# counted WORD LOG: cmocka's number of tests that are WORD (PASSED, SKIPPED, FAILED), over all groups of a program.
counted() {
    sed -n "s/^\[ *$1 *\] \([0-9]*\) test(s).*$/\1/p" "$2" | awk '{ n += $1 } END { print n + 0 }'
}

# count NAME LOG COMMAND...: runs one test program; what it prints goes to LOG.
count() {
    name=$1
    log=$2
    shift 2
    start=$(date +%s)
    "$@" >"$log" 2>&1
    status=$?
    p=$(counted PASSED "$log")
    f=$(counted FAILED "$log")
    # A program that dies, that takes too long, or that leaks at its end, has failed even if no test says so.
    [ "$status" -ne 0 ] && [ "$f" -eq 0 ] && f=1
    passed=$((passed + p))
    failed=$((failed + f))
    skipped=$((skipped + $(counted SKIPPED "$log")))
    printf '%-44s %4d passed %3d failed %5d s\n' "$name" "$p" "$f" $(($(date +%s) - start))
    # What was not looked at is said: with its reason, or by name.
    reasons=$(sed -n 's/^skipped: \(.*\)$/    skipped: \1/p' "$log" | sort -u)
    [ -n "$reasons" ] || reasons=$(sed -n 's/^\[  SKIPPED \] \([a-z].*\)$/    skipped: \1/p' "$log" | sort -u)
    [ -z "$reasons" ] || echo "$reasons"
    [ "$status" -ne 124 ] || echo "    ended after its time was over"
    [ "$status" -eq 0 ] || grep -v '^\[ RUN\|^\[       OK' "$log" | head -60
}

# The sum, in one plain line; fails unless something passed and nothing failed.
count_end() {
    [ "$skipped" -eq 0 ] || echo "$skipped skipped"
    echo "$passed passed, $failed failed"
    [ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
}
