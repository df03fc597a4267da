#!/bin/sh
# Sweeps on CUDA: alone, packed, and killed and resumed, they end with the same bytes: cuda_sweep.sh STATELAB
set -u
statelab=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

cat >"$folder/small.yaml" <<'YAML'
name: small
task: {name: flip_flop, seq_len: 96, p_ignore: 0.8}
model: {layers: 1, heads: 2, dim: 32, ffn_dim: 64}
train: {steps: 3000, batch: 8, lr: 3e-3, log_every: 50}
eval:
  id: {sequences: 500}
sweep:
  model.attention: [rope, sba, fox, path, path_fox]
  train.precision: [tf32, bf16]
checkpoint: {every: 0.3s}
YAML

# Every column but the two of timing, and the weights.
bytes() {
    sed -E 's/,[^,]*,[^,]*$//' "$1/small/results.csv"
    (cd "$1/small" && cksum ./*/model.safetensors)
}

sweep() {
    out=$1
    shift
    "$statelab" run "$folder/small.yaml" --device cuda:0 --out "$folder/$out" "$@" >"$folder/$out.log" 2>&1
}

same() {
    bytes "$folder/$1" >"$folder/$1.bytes"
    bytes "$folder/$2" >"$folder/$2.bytes"
    cmp "$folder/$1.bytes" "$folder/$2.bytes" || exit 1
    echo "$1 and $2: the same bytes"
}

sweep alone --pack 1 || { cat "$folder/alone.log"; exit 1; }
sweep packed --pack 8 || { cat "$folder/packed.log"; exit 1; }
same alone packed
sweep automatic || { cat "$folder/automatic.log"; exit 1; }
same alone automatic
for wait in 1.5 2 2.5; do
    sweep killed --pack 4 &
    sleep "$wait"
    pkill -KILL -f "$folder/killed" && echo "killed after $wait s"
    wait
done
sweep killed --pack 4 || { cat "$folder/killed.log"; exit 1; }
same alone killed
