#include "crew.h"

#include <exception>

#include "common.h"
#include "forked.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace headrace {
namespace {

constexpr int kSpins = 1000;  // looks before a thread goes to sleep: some tens of microseconds

void pause() {
#if defined(__x86_64__)
    _mm_pause();
#endif
}

constexpr uint64_t kTasks = 0xFFFFFFFFull;

}  // namespace

Crew::~Crew() { stop(); }

void Crew::stop() {
    if (born_ != forks()) new std::vector(std::move(threads_));  // they are not in this process: to join them would not end
    stopped_.store(true);
    run_.fetch_add(1);
    run_.notify_all();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
    stopped_.store(false);
}

void Crew::run(int64_t count, int threads, const Task& task) {
    require(count >= 0 && count <= static_cast<int64_t>(kTasks), "too many tasks for one run");
    if (count == 0) return;
    if (threads <= 1 || count == 1) {
        for (int64_t i = 0; i < count; ++i) task(i, 0);
        return;
    }
    if (static_cast<size_t>(threads) != threads_.size() + 1 || born_ != forks()) {
        stop();
        born_ = forks();
        threads_.reserve(static_cast<size_t>(threads));
        try {
            for (int worker = 1; worker < threads; ++worker) threads_.emplace_back([this, worker] { help(worker); });
        } catch (const std::exception&) {  // no more threads to be had: those there are do the work
        }
    }
    task_.store(&task);
    left_.store(count);
    const uint64_t number = (ticket_.load() >> 32) + 1;
    ticket_.store(number << 32 | static_cast<uint64_t>(count));
    run_.fetch_add(1);
    run_.notify_all();
    while (work(0)) {
    }
    for (int spins = 0; left_.load() > 0; ++spins) {
        if (spins < kSpins) {
            pause();
            continue;
        }
        if (const int64_t left = left_.load()) left_.wait(left);
    }
}

// Does one task, if there is one that no thread has begun. The run and the task are taken at once, so a thread that comes late
// finds the tasks of the run it came for done, or takes one of the next run as that run describes it.
bool Crew::work(int worker) {
    uint64_t ticket = ticket_.load();
    do {
        if ((ticket & kTasks) == 0) return false;
    } while (!ticket_.compare_exchange_weak(ticket, ticket - 1));
    (*task_.load())(static_cast<int64_t>(ticket & kTasks) - 1, worker);
    if (left_.fetch_sub(1) == 1) left_.notify_one();
    return true;
}

void Crew::help(int worker) {
    uint32_t seen = 0;
    while (true) {
        const uint32_t now = run_.load();
        if (stopped_.load()) return;
        if (now != seen) {
            seen = now;
            while (work(worker)) {
            }
            continue;
        }
        for (int spins = 0; spins < kSpins && run_.load() == seen; ++spins) pause();
        run_.wait(seen);
    }
}

}  // namespace headrace
