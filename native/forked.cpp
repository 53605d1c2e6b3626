#include "forked.h"

#include <omp.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

namespace headrace {
namespace {

std::atomic<uint32_t> count{0};

struct Registry {
    std::mutex mutex;
    std::vector<std::mutex*> all;
};

// Never destroyed: a buffer may be given back, and a process may fork, while the interpreter ends.
Registry& registry() {
    static Registry* const all = new Registry;
    return *all;
}

void unlock(size_t number) {
    for (size_t i = 0; i < number; ++i) registry().all[i]->unlock();
}

// A thread may hold one of them and wait for another, so nothing is held while one is waited for.
void before() {
    Registry& locks = registry();
    locks.mutex.lock();
    for (size_t i = 0; i < locks.all.size();) {
        if (locks.all[i]->try_lock()) {
            ++i;
            continue;
        }
        unlock(i);
        i = 0;
        std::this_thread::yield();
    }
}

void after() {
    unlock(registry().all.size());
    registry().mutex.unlock();
}

void in_child() {
    count.fetch_add(1);
    omp_set_max_active_levels(0);
    after();
}

const int registered = (registry(), pthread_atfork(before, after, in_child));

}  // namespace

uint32_t forks() noexcept { return count.load(std::memory_order_relaxed); }

ForkedMutex::ForkedMutex() {
    const std::lock_guard lock(registry().mutex);
    registry().all.push_back(this);
}

ForkedMutex::~ForkedMutex() {
    const std::lock_guard lock(registry().mutex);
    std::erase(registry().all, this);
}

}  // namespace headrace
