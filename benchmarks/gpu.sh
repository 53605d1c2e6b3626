#!/usr/bin/env bash
# On a machine with a GPU, from a checkout: builds the native module, runs the GPU's tests and all its benchmarks.
#   benchmarks/gpu.sh OUT [PART...]   logs and one JSON file per benchmark go to OUT; needs cmake, nanobind, pytest, torch with CUDA
# Parts, each of some minutes: tests bits train ranks sampling whole pyg links tiers temporal snapshots; all of them unless some are named.
set -uo pipefail
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || { echo "usage: benchmarks/gpu.sh OUT [PART...]" >&2; exit 2; }
out=$(realpath -m "$1")
shift
[ $# -gt 0 ] || set -- tests bits train ranks sampling whole pyg links tiers temporal snapshots
python=${PYTHON:-python3}
threads=$(nproc)
mkdir -p "$out"
cmake -S . -B build/plain > "$out/build.log" && cmake --build build/plain -j "$threads" --target install >> "$out/build.log" || exit 1
export PYTHONPATH=src PYTHONUNBUFFERED=1
data=$(mktemp -d)
trap 'rm -rf "$data"' EXIT

bench() {  # name of the JSON file, then what `headrace bench` takes
  local name=$1
  shift
  "$python" -m headrace bench "$1" --threads "$threads" "${@:2}" --json > "$out/$name.json" 2> "$out/$name.err" || tail -n 3 "$out/$name.err"
}

preset() {  # the folder of a generated dataset, made when it is first asked for
  [ -d "$data/$1" ] || "$python" -c "import sys, headrace as hr; hr.generate.preset(sys.argv[1]).save(sys.argv[2])" "$1" "$data/$1"
  echo "$data/$1"
}

# Most of the tests' time is the compiler's, so the files run side by side; what is timed comes after them, alone.
tests() {
  for file in tests/gpu/test_*.py; do
    "$python" -m pytest -q -p no:cacheprovider -m gpu "$file" > "$out/$(basename "$file" .py).log" 2>&1 &
  done
  wait
  tail -qn 1 "$out"/test_*.log
}

bits() {  # to be compared with another tree's: benchmarks/bits.py --compare FILE
  "$python" benchmarks/bits.py --device cuda --json "$out/bits.json" > "$out/bits.log" 2>&1 || tail -n 3 "$out/bits.log"
}

train() { bench products-epoch gpu-epoch --data "$(preset products)" --repeats 2; }

ranks() { bench push-pull gpu-push-pull --batches 20 --threads $((threads / 2)); }

sampling() {
  bench products-sampling gpu-sampling --data "$(preset products)" --batches 100 --repeats 3
  bench products-gather gpu-gather --data "$(preset products)" --batches 8
  bench reddit-sampling gpu-sampling --data "$(preset reddit)" --batches 100 --repeats 3
  bench reddit-gather gpu-gather --data "$(preset reddit)" --batches 8
}

whole() {
  bench products-aggregate gpu-aggregate --data "$(preset products)"
  bench products-attend gpu-attend --data "$(preset products)" --repeats 3
  bench advise gpu-advise --repeats 3
  bench whole-graph gpu-whole-graph --scale 0.3 --repeats 3
}

pyg() { bench pyg pyg --device cuda --scale 0.1 --repeats 3; }

links() { bench freebase gpu-link --tiers device,host,disk --order best --folder "$data"; }

temporal() {  # EVENTS: a folder with a stream in place of jodie_wikipedia; LONG_EVENTS: of the stream that is mapped from disk
  bench temporal gpu-temporal ${EVENTS:+--data "$EVENTS"} --generated "${LONG_EVENTS:-20000000}" --folder "$data"
}

tiers() { bench papers-tiers gpu-tiers --preset papers100M --scale "${PAPERS_SCALE:-0.3}" --batches 60 --repeats 3; }

snapshots() {
  bench gpu-snapshots gpu-snapshots
  bench snapshots snapshots --ranks 4 --threads 4  # on the host's processors
}

for part in "$@"; do
  declare -F "$part" > /dev/null || { echo "no part is called $part" >&2; exit 2; }
  "$part"
done
