#!/usr/bin/env bash
# Every benchmark of `headrace bench`, one JSON file each:  benchmarks/run.sh OUT [options of headrace bench]
# Works in an installed environment, and in a checkout that was built by cmake alone (docs/install.md).
set -euo pipefail
out=${1:?usage: benchmarks/run.sh OUT [--scale 1 ...]}
shift
mkdir -p "$out"
for name in sampling gather aggregate loader train; do
  "${PYTHON:-python3}" -m headrace bench "$name" --json "$@" > "$out/$name.json"
done
