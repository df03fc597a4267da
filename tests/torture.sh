#!/bin/bash
# Kills the workers of a sweep, and the sweep itself, at random moments; the results must be those of an undisturbed
# sweep, byte for byte but for the timing columns, and none may be made twice: torture.sh STATELAB KILLS
set -u
statelab=$1
kills=${2:-12}
folder=$(mktemp -d)
watcher=
trap '[ -z "$watcher" ] || kill $watcher; rm -rf "$folder"' EXIT
RANDOM=${SEED:-1}

cat >"$folder/torture.yaml" <<'YAML'
name: torture
task: {name: flip_flop, seq_len: 16, p_ignore: 0.5}
model: {layers: 1, heads: 1, dim: 16, ffn_dim: 16}
train: {steps: 400, batch: 4, lr: 1e-3, log_every: 50}
eval:
  id: {sequences: 50}
  dense: {p_ignore: 0.1, sequences: 50}
sweep:
  model.attention: [rope, path]
  train.lr: [1e-3, 3e-3, 1e-2]
  seed: [0, 1, 2, 3]
checkpoint: {every: 0.2s}
YAML

fail() {
    echo "FAILED: $*" >&2
    exit 1
}

# Every column but the two of timing.
untimed() {
    sed -E 's/,[^,]*,[^,]*$//' "$1"
}

"$statelab" run "$folder/torture.yaml" --device cpu --workers 2 --out "$folder/calm" 2>"$folder/calm.log" ||
    fail "the undisturbed sweep: $(tail -3 "$folder/calm.log")"

# Holds on to every result as it appears: one that is made a second time is another file of the same name.
mkdir "$folder/kept"
watch_results() {
    while sleep 0.03; do
        for result in "$folder"/wild/torture/*/result.csv; do
            run=$(basename "${result%/result.csv}")
            [ -e "$folder/kept/$run" ] || ln "$result" "$folder/kept/$run" 2>/dev/null
        done
    done
}
watch_results &
watcher=$!

start() {
    "$statelab" run "$folder/torture.yaml" --device cpu --workers 2 --pack 2 --out "$folder/wild" 2>>"$folder/wild.log" &
    parent=$!
}
start
for ((i = 0; i < kills; i++)); do
    sleep "0.$((RANDOM % 20 + 10))"
    if ! kill -0 "$parent" 2>/dev/null; then
        # All done before all the kills: begin again with a new half of the runs.
        wait "$parent"
        for run in $(ls -d "$folder"/wild/torture/*/ | head -12); do
            rm -r "$run"
            rm -f "$folder/kept/$(basename "$run")"
        done
        start
        continue
    fi
    if ((RANDOM % 5 == 0)); then
        kill -KILL "$parent"
        wait "$parent" 2>/dev/null
        start
    else
        mapfile -t workers < <(pgrep -P "$parent")
        ((${#workers[@]} > 0)) && kill -KILL "${workers[RANDOM % ${#workers[@]}]}" 2>/dev/null
    fi
done
wait "$parent"
"$statelab" run "$folder/torture.yaml" --device cpu --workers 2 --pack 2 --out "$folder/wild" 2>>"$folder/wild.log" ||
    fail "the tortured sweep: $(tail -3 "$folder/wild.log")"

sleep 0.2
[ "$(find "$folder/kept" -type f | wc -l)" = 24 ] || fail "not every result was seen to appear"
for result in "$folder"/wild/torture/*/result.csv; do
    run=$(basename "${result%/result.csv}")
    [ "$result" -ef "$folder/kept/$run" ] || fail "run $run was trained to the end twice"
done
diff <(untimed "$folder/calm/torture/results.csv") <(untimed "$folder/wild/torture/results.csv") >"$folder/difference" ||
    fail "results differ: $(head -5 "$folder/difference")"
diff "$folder/calm/torture/summary.csv" "$folder/wild/torture/summary.csv" >/dev/null || fail "summaries differ"
for run in "$folder"/calm/torture/*/; do
    name=$(basename "$run")
    cmp -s "$run/model.safetensors" "$folder/wild/torture/$name/model.safetensors" || fail "the weights of $name differ"
    diff <(cut -d, -f1-4 "$run/metrics.csv") <(cut -d, -f1-4 "$folder/wild/torture/$name/metrics.csv") >/dev/null ||
        fail "the metrics of $name differ"
done
left=$(find "$folder/wild" -name '*.tmp' -o -name 'claim' -o -name 'checkpoint*')
[ -z "$left" ] || fail "left behind: $left"
echo "$kills kills, same results"
