// Threads that help with many small tasks, thousands of times a second. Who calls works too, and waits only for tasks that
// another thread has begun: one that gets no processor in time, on a machine shared with other programs, is not waited for. (At the
// end of an OpenMP loop all threads must arrive, and spin until the last one does.)
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace headrace {

class Crew {
public:
    using Task = std::function<void(int64_t task, int worker)>;

    Crew() = default;
    Crew(const Crew&) = delete;
    Crew& operator=(const Crew&) = delete;
    ~Crew();
    // Calls task(i, worker) once for each i below count, worker being below `threads`, until all are done. Tasks must not throw.
    void run(int64_t count, int threads, const Task& task);

private:
    bool work(int worker);
    void help(int worker);
    void stop();

    std::atomic<uint64_t> ticket_{0};     // which run it is, and how many of its tasks no thread has begun
    std::atomic<uint32_t> run_{0};        // changes when there is work
    std::atomic<int64_t> left_{0};        // tasks that are not done
    std::atomic<const Task*> task_{nullptr};
    std::atomic<bool> stopped_{false};
    std::vector<std::thread> threads_;
    uint32_t born_ = 0;  // forks() when they were started
};

}  // namespace headrace
