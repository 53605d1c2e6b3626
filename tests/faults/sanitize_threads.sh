#!/bin/sh
# The native module's std::threads under ThreadSanitizer, in a program of their own. The parallel loops are left out: libgomp waits by
# futexes of its own, which the sanitizer does not know, so it takes what a barrier orders for a race. Those loops share nothing but
# FirstError and the stamps of relabel.h, both by atomics, and tests compare their bits for any number of threads.
set -eu
cd "$(dirname "$0")/../.."
out=build/sanitize/threads
mkdir -p $out
compiler="${CXX:-c++} -std=c++20 -O1 -g1 -fsanitize=thread -Wno-unknown-pragmas -Wno-psabi -DHEADRACE_LEVEL=baseline"
for source in tests/faults/native_threads.cpp native/crew.cpp native/forked.cpp native/pool.cpp native/read.cpp native/csr.cpp \
    native/link_step.cpp native/shared_softmax.cpp native/row_update.cpp native/vector_shared.cpp native/vector_link.cpp; do
    object=$out/$(basename "$source" .cpp).o
    case $source in native/vector_*) arch="-march=x86-64-v2 -fno-math-errno -ffp-contract=off" ;; *) arch= ;; esac
    [ "$(uname -m)" = x86_64 ] || arch=
    $compiler $arch -c "$source" -o "$object"
done
$compiler $out/*.o -o $out/native_threads
TSAN_OPTIONS=halt_on_error=1 $out/native_threads
