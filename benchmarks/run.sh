#!/usr/bin/env bash
# Every benchmark of `headrace bench`, one JSON file each:  benchmarks/run.sh OUT [options of headrace bench]
# Works in an installed environment, and in a checkout that was built by cmake alone (docs/install.md).
set -euo pipefail
out=${1:?usage: benchmarks/run.sh OUT [--scale 1 ...]}
shift
mkdir -p "$out"
names="sampling gather cache aggregate attend loader train whole-graph advise link out-of-core"
if "${PYTHON:-python3}" -c "import sys, torch; sys.exit(not torch.cuda.is_available())"; then
  names="$names gpu-sampling gpu-gather gpu-epoch gpu-tiers gpu-aggregate gpu-attend gpu-whole-graph gpu-advise"
fi
for name in $names; do
  "${PYTHON:-python3}" -m headrace bench "$name" --json "$@" > "$out/$name.json"
done
