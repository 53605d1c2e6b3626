#!/usr/bin/env bash
# On a machine with a GPU, from a checkout: builds the native module, runs the GPU's tests and all its benchmarks.
#   benchmarks/gpu.sh OUT        logs and one JSON file per benchmark go to OUT; needs cmake, nanobind, pytest, torch with CUDA
set -uo pipefail
cd "$(dirname "$0")/.."
out=$(realpath -m "${1:?usage: benchmarks/gpu.sh OUT}")
python=${PYTHON:-python3}
threads=$(nproc)
mkdir -p "$out"
cmake -S . -B build/plain > "$out/build.log" && cmake --build build/plain -j "$threads" --target install >> "$out/build.log" || exit 1
export PYTHONPATH=src PYTHONUNBUFFERED=1

# Most of the tests' time is the compiler's, so the files run side by side; what is timed comes after them, alone.
for file in tests/gpu/test_*.py; do
  "$python" -m pytest -q -p no:cacheprovider -m gpu "$file" > "$out/$(basename "$file" .py).log" 2>&1 &
done
wait
tail -qn 1 "$out"/test_*.log

bench() {  # name of the JSON file, then what `headrace bench` takes
  local name=$1
  shift
  "$python" -m headrace bench "$1" --threads "$threads" "${@:2}" --json > "$out/$name.json" 2> "$out/$name.err" || tail -n 3 "$out/$name.err"
}
data=$(mktemp -d)
trap 'rm -rf "$data"' EXIT
"$python" -c "import sys, headrace as hr; hr.generate.preset('products').save(sys.argv[1])" "$data/products"
"$python" -c "import sys, headrace as hr; hr.generate.preset('reddit').save(sys.argv[1])" "$data/reddit"
bench products-sampling gpu-sampling --data "$data/products" --batches 100 --repeats 3
bench products-gather gpu-gather --data "$data/products" --batches 8
bench products-epoch gpu-epoch --data "$data/products" --repeats 2
bench products-aggregate gpu-aggregate --data "$data/products"
bench products-attend gpu-attend --data "$data/products" --repeats 3
bench advise gpu-advise --repeats 3
bench whole-graph gpu-whole-graph --scale 0.3 --repeats 3
bench reddit-sampling gpu-sampling --data "$data/reddit" --batches 100 --repeats 3
bench reddit-gather gpu-gather --data "$data/reddit" --batches 8
bench push-pull gpu-push-pull --batches 20 --threads $((threads / 2))
bench freebase gpu-link --tiers device,host,disk --order best --folder "$data"
bench papers-tiers gpu-tiers --preset papers100M --scale "${PAPERS_SCALE:-0.3}" --batches 60 --repeats 3
