#!/usr/bin/env bash
# Trains every recipe of link prediction and prints its filtered MRR; on a GPU some minutes in all.
#   benchmarks/recipes.sh OUT [DEVICE]      runs go to OUT; HEADRACE_DATA names the folder of fb15k, fb15k237 and codex_m
set -uo pipefail
cd "$(dirname "$0")/.."
out=$(realpath -m "${1:?usage: benchmarks/recipes.sh OUT [DEVICE]}")
python=${PYTHON:-python3}
mkdir -p "$out"
for recipe in recipes/*.toml; do
  name=$(basename "$recipe" .toml)
  dataset=$(sed -n 's/^# headrace train link \([a-z0-9_]*\) .*/\1/p' "$recipe" | head -n 1)
  "$python" -m headrace train link "$dataset" --config "$recipe" --device "${2:-cuda}" --out "$out/$name" --json > "$out/$name.json" || continue
  "$python" -c "
import json, sys
result = json.load(open(sys.argv[2]))
print(f\"{sys.argv[1]}: MRR {result['test']['mrr']:.4f}, hits@10 {result['test']['hits@10']:.4f}, {result['seconds']:.0f} s\")" "$name" "$out/$name.json"
done
