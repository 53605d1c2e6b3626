#!/usr/bin/env bash
# Every benchmark of `headrace bench`, one JSON file each:  benchmarks/run.sh OUT [options of headrace bench]
# Works in an installed environment, and in a checkout that was built by cmake alone (docs/install.md).
set -euo pipefail
out=${1:?usage: benchmarks/run.sh OUT [--scale 1 ...]}
shift
mkdir -p "$out"
python=${PYTHON:-python3}
for name in sampling gather cache aggregate attend loader train whole-graph elastic advise link out-of-core; do
  "$python" -m headrace bench "$name" --json "$@" > "$out/$name.json"
done
"$python" -c "import sys, torch; sys.exit(not torch.cuda.is_available())" || exit 0
for name in sampling gather train loader aggregate attend whole-graph advise; do
  "$python" -m headrace bench "$name" --device cuda --json "$@" > "$out/$name-cuda.json"
done
