#!/bin/bash
# Starts a real Slurm on this machine (munged, slurmctld and slurmd of its own, in a temporary folder), runs sweeps
# through `statelab slurm --submit`, and compares their results with those of local workers: slurm.sh STATELAB
set -u
export PATH=$PATH:/usr/sbin:/sbin
statelab=$(realpath "$1")
tests=$(dirname "$0")
passed=0
failed=0

missing=
for program in munged slurmctld slurmd sbatch; do
    command -v $program >/dev/null || missing="$missing $program"
done
if [ -n "$missing" ]; then
    sh "$tests/install.sh" "$missing" munged:munge slurmctld:slurmctld slurmd:slurmd sbatch:slurm-client || exit 1
fi

# ---- one cluster of one node ----

folder=$(mktemp -d /tmp/statelab-slurm-XXXXXX)
chmod 755 "$folder" # munged refuses a socket that others cannot reach
daemons=()
# shellcheck disable=SC2317
stop() {
    scancel --full --signal=KILL --user="$(id -un)" 2>/dev/null
    scancel --user="$(id -un)" 2>/dev/null
    for ((i = ${#daemons[@]} - 1; i >= 0; i--)); do
        kill "${daemons[i]}" 2>/dev/null
        wait "${daemons[i]}" 2>/dev/null
    done
    rm -rf "$folder"
}
trap stop EXIT
trap 'exit 130' INT TERM

export SLURM_CONF=$folder/slurm.conf
port=$((20000 + $$ % 20000))
node=$(hostname -s)
mkdir "$folder/state" "$folder/spool"
head -c 1024 /dev/urandom >"$folder/munge.key"
chmod 400 "$folder/munge.key"
cat >"$SLURM_CONF" <<CONF
ClusterName=statelab
SlurmctldHost=$node(127.0.0.1)
SlurmctldPort=$port
SlurmdPort=$((port + 1))
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
AuthType=auth/munge
AuthInfo=socket=$folder/munge.socket
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.log
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/builtin
ReturnToService=2
KillWait=5
NodeName=$node NodeAddr=127.0.0.1 CPUs=3
PartitionName=main Nodes=ALL Default=YES
CONF

munged --foreground --force --key-file="$folder/munge.key" --socket="$folder/munge.socket" \
    --pid-file="$folder/munge.pid" --log-file="$folder/munge.log" --seed-file="$folder/munge.seed" \
    2>"$folder/munge.err" &
daemons+=($!)
slurmctld -D -c >"$folder/slurmctld.out" 2>&1 &
daemons+=($!)
slurmd -D -N "$node" >"$folder/slurmd.out" 2>&1 &
daemons+=($!)
for ((i = 0; i < 100; i++)); do
    [ "$(sinfo --noheader --format=%T 2>/dev/null)" = idle ] && break
    sleep 0.2
done
if [ "$(sinfo --noheader --format=%T 2>&1)" != idle ]; then
    echo "the cluster does not start:" >&2
    tail -n 5 "$folder"/munge.err "$folder"/slurmctld.out "$folder"/slurmd.out >&2
    echo "0 passed, 1 failed"
    exit 1
fi

# ---- sweeps ----

cat >"$folder/array.yaml" <<'YAML'
name: array
task: {name: flip_flop, seq_len: 16, p_ignore: 0.5}
model: {layers: 1, heads: 1, dim: 16, ffn_dim: 16}
train: {steps: 2000, batch: 4, lr: 1e-3, log_every: 100}
eval:
  id: {sequences: 50}
  dense: {p_ignore: 0.1, sequences: 50}
sweep:
  model.attention: [rope, path]
  train.lr: [1e-3, 3e-3]
  seed: [0, 1, 2]
checkpoint: {every: 0.2s}
select: {best_over: [train.lr], by: id.error, report: median over seed}
YAML

# check NAME COMMAND...
check() {
    local name=$1
    shift
    if "$@" >"$folder/check.log" 2>&1; then
        passed=$((passed + 1))
        echo "passed  $name"
    else
        failed=$((failed + 1))
        echo "FAILED  $name"
        head -n 10 "$folder/check.log"
    fi
}

# submit OUT ARGUMENT...: sets `job`; the run directory is OUT/array, given by a relative path.
submit() {
    local out=$1
    shift
    (cd "$folder" && "$statelab" slurm array.yaml --array 3 --out "$out" --submit "$@") >"$folder/submit.log" 2>&1
    job=$(sed -n 's/^Submitted batch job \([0-9]*\)$/\1/p' "$folder/submit.log")
    [ -n "$job" ] || cat "$folder/submit.log" >&2
    [ -n "$job" ]
}

# Until no task of the job is left, at most three minutes.
wait_for_job() {
    for ((i = 0; i < 900; i++)); do
        [ -z "$(squeue --noheader --jobs="$job" 2>/dev/null)" ] && return 0
        sleep 0.2
    done
    return 1
}

# Until some run of OUT has a checkpoint.
wait_for_checkpoint() {
    for ((i = 0; i < 600; i++)); do
        compgen -G "$folder/$1/array/*/checkpoint" >/dev/null && return 0
        sleep 0.05
    done
    return 1
}

ended_in() { # TASK STATE
    scontrol show job "${job}_$1" | grep -q "JobState=$2"
}
untimed() { # every column but the two of timing
    sed -E 's/,[^,]*,[^,]*$//' "$1"
}
same_results() {
    diff <(untimed "$folder/local/array/results.csv") <(untimed "$folder/$1/array/results.csv") &&
        cmp "$folder/local/array/summary.csv" "$folder/$1/array/summary.csv"
}
nothing_left() {
    ! find "$folder/$1" -name '*.tmp' -o -name claim -o -name 'checkpoint*' | grep .
}
# Every process of a task at once, with SIGKILL: scancel would begin with SIGTERM.
kill_task() {
    local number pids
    number=$(squeue --noheader --jobs="${job}_$1" --format=%A)
    pids=$(scontrol listpids "$number" | awk 'NR > 1 { print $1 }')
    # shellcheck disable=SC2086
    [ -n "$pids" ] && kill -KILL $pids
}
unfinished() {
    [ "$(find "$folder/$1" -name result.csv | wc -l)" -lt 12 ]
}

"$statelab" run "$folder/array.yaml" --device cpu --workers 2 --out "$folder/local" 2>"$folder/local.log" ||
    tail -n 3 "$folder/local.log" >&2

check "an array of 3 tasks is submitted" submit whole
check "and ends" wait_for_job
for task in 1 2 3; do
    check "task $task succeeds, and logs into the run directory" ended_in $task COMPLETED
    check "  its log" test -s "$folder/whole/array/slurm-$job-$task.log"
done
check "results equal those of local workers" same_results whole
check "nothing is left behind" nothing_left whole

check "options reach sbatch, quotes and all" submit options --sbatch "--comment='two words' --job-name=renamed"
check "  as the job shows" bash -c "scontrol show job $job | grep -q 'Comment=two words' &&
    scontrol show job $job | grep -q JobName=renamed"
scancel "$job"
wait_for_job
check "an option that sbatch does not know is an error" bash -c \
    "! (cd '$folder' && '$statelab' slurm array.yaml --out bad --submit --sbatch --no-such-option)"

check "another array is submitted" submit killed
check "and trains" wait_for_checkpoint killed
check "one task is killed" kill_task 1
check "in mid-sweep" unfinished killed
check "the other tasks end" wait_for_job
check "the killed one had failed" ended_in 1 FAILED
check "the others did all the work: same results" same_results killed
check "nothing is left behind" nothing_left killed

check "a third array is submitted" submit again
check "and trains" wait_for_checkpoint again
check "all of it is cancelled" scancel "$job"
check "and ends" wait_for_job
check "in mid-sweep" unfinished again
check "the same command goes on" submit again
check "to its end" wait_for_job
check "same results" same_results again
check "nothing is left behind" nothing_left again

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
