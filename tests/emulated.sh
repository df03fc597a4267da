#!/bin/sh
# Runs the shorter half of the tests of CUDA (STATELAB_REDUCED=1) on the emulation of a GPU: with threads from first to
# last, from last to first, and so with the shared memory of compute capability 8.6 and 8.9, and of 8.0. Each program has at
# most LIMIT seconds: emulated.sh FOLDER (of the programs)
set -u
LIMIT=${LIMIT:-600}
. "$(dirname "$0")/count.sh"
output=$(mktemp)
trap 'rm -f "$output"' EXIT
export STATELAB_REDUCED=1

for way in ORDER=forward ORDER=reverse SHARED=101376 SHARED=166912; do
    for program in "$1"/test_cuda*; do
        # Sweeps ask nothing of kernels that runs do not: once is enough. Only attention minds the shared memory.
        case $way:${program##*/} in
        ORDER=reverse:test_cuda_sweep) continue ;;
        SHARED=*:test_cuda_attention) ;;
        SHARED=*) continue ;;
        esac
        count "$way $(basename "$program")" "$output" env STATELAB_EMULATOR_ORDER=reverse "STATELAB_EMULATOR_$way" \
            timeout "$LIMIT" "$program"
    done
done
count_end
