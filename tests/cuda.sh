#!/bin/sh
# Runs the tests that need a GPU, then the shorter half of them (STATELAB_REDUCED=1) under compute-sanitizer where it is
# installed, each for at most LIMIT seconds:
# cuda.sh FOLDER (of the programs: build/cuda, or bin/ of a bundle)
set -u
LIMIT=${LIMIT:-600}
PATH=$PATH:/usr/local/cuda/bin
passed=0
failed=0
skipped=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# run NAME COMMAND...: a program passes if it exits with 0 and skips nothing; what a failed one printed is shown.
run() {
    name=$1
    shift
    if ! "$@" >"$log" 2>&1; then
        failed=$((failed + 1))
        verdict=FAILED
    elif grep -q SKIPPED "$log"; then
        skipped=$((skipped + 1))
        verdict="skipped: $(sed -n 's/^skipped: //p' "$log" | head -n 1)"
    else
        passed=$((passed + 1))
        verdict=passed
    fi
    printf '%-44s %s\n' "$name" "$verdict"
    [ "$verdict" = FAILED ] && grep -v '^\[ RUN\|^\[       OK' "$log" | head -60
}

for program in "$1"/test_cuda*; do
    run "$(basename "$program")" "$program"
done
if command -v compute-sanitizer >/dev/null; then
    export STATELAB_REDUCED=1
    for tool in memcheck racecheck initcheck; do
        for program in "$1"/test_cuda*; do
            run "$tool $(basename "$program")" timeout "$LIMIT" compute-sanitizer --tool $tool --error-exitcode 9 "$program"
        done
    done
else
    echo "compute-sanitizer is not installed: its checks were skipped"
fi
[ "$skipped" -eq 0 ] || echo "$skipped skipped"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
