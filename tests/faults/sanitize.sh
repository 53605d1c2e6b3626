#!/bin/sh
# The native module under AddressSanitizer and UndefinedBehaviorSanitizer, on every instruction set of the machine: the fuzzer and
# short training runs. Then its own threads under ThreadSanitizer. Builds into build/sanitize.
#   make sanitize [CALLS=20000] [SEED=1] [PYTHON_OF_BUILD=a python that has nanobind]
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
cd "$root"
python=${PYTHON:-.venv/bin/python}
builder=${PYTHON_OF_BUILD:-$python}
case $builder in */*) builder=$(cd "$(dirname "$builder")" && pwd)/$(basename "$builder") ;; esac # cmake takes whole paths alone
calls=${CALLS:-20000} seed=${SEED:-1}
out=build/sanitize
mkdir -p $out/src

cmake -S . -B $out/native -DCMAKE_BUILD_TYPE=Debug -DHEADRACE_SANITIZE=address,undefined -DPython_EXECUTABLE="$builder" \
    -DCMAKE_INSTALL_PREFIX="$root/$out/src" >$out/build.log 2>&1 || { cat $out/build.log; exit 1; }
cmake --build $out/native -j "$(nproc)" --target install >$out/build.log 2>&1 || { tail -50 $out/build.log; exit 1; }
tar -C src -cf - --exclude='*.so' --exclude=__pycache__ headrace | tar -C $out/src -xf -
# An editable install looks itself up before PYTHONPATH does.
cat >$out/src/sitecustomize.py <<'PYTHON'
import sys

sys.meta_path[:] = [finder for finder in sys.meta_path if "Redirecting" not in type(finder).__name__]
PYTHON

library() { ${CXX:-c++} -print-file-name="$1"; }
# libasan first, then libstdc++, whose exceptions it must find when it starts.
sanitized() {
    env LD_PRELOAD="$(library libasan.so) $(library libstdc++.so.6)" PYTHONPATH="$root/$out/src" PYTHONMALLOC=malloc \
        ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1:max_allocation_size_mb=500:detect_odr_violation=0 \
        UBSAN_OPTIONS=print_stacktrace=1 HEADRACE_FUZZ_EXACT=1 HEADRACE_LEVEL="$level" "$@"
}
levels=baseline
grep -qw avx2 /proc/cpuinfo && levels="$levels avx2"
grep -qw avx512bw /proc/cpuinfo && levels="$levels avx512"
for level in $levels; do
    used=$(sanitized "$python" -c "import sys; sys.path.insert(0, 'tests/faults'); import native; print(native.load_native().level)")
    [ "$used" = "$level" ] || { echo "level $level was asked for, and $used is used"; exit 1; }
    echo "$level: fuzzer, $(sanitized "$python" tests/faults/fuzz_native.py --seed "$seed" --calls "$calls")"
    sanitized "$python" tests/faults/short_runs.py
    echo "$level: short training runs, clean"
done
sh tests/faults/sanitize_threads.sh
