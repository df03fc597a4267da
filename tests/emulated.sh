#!/bin/sh
# Runs the shorter half of the tests of CUDA (STATELAB_REDUCED=1) on the emulation of a GPU, with threads from first to
# last, from last to first, and with the shared memory of compute capability 8.6 and 8.9, each for at most LIMIT seconds:
# emulated.sh FOLDER (of the programs)
set -u
LIMIT=${LIMIT:-600}
. "$(dirname "$0")/count.sh"
output=$(mktemp)
trap 'rm -f "$output"' EXIT
export STATELAB_REDUCED=1

for way in ORDER=forward ORDER=reverse SHARED=101376; do
    export "STATELAB_EMULATOR_$way"
    for program in "$1"/test_cuda*; do
        # Sweeps ask nothing of kernels that runs do not: once is enough.
        [ "$way" = ORDER=forward ] || [ "${program##*/}" != test_cuda_sweep ] || continue
        count "$way $(basename "$program")" "$output" timeout "$LIMIT" "$program"
    done
done
count_end
