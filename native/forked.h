// What fork() does to this module. A child has the thread that forked and no other: a lock that another thread held stays locked,
// and OpenMP waits for threads of its pool that are not there. So locks that outlive a call are taken around fork(), and in the
// child parallel regions of the thread that forked have one thread. Threads that the child starts have pools of their own.
#pragma once

#include <cstdint>
#include <mutex>

namespace headrace {

// How many forks lie between this process and the one that loaded the module: threads started at another count are not here.
uint32_t forks() noexcept;

// A mutex that is free in a child, whichever thread had it at the fork, and what it guards is whole.
class ForkedMutex : public std::mutex {
public:
    ForkedMutex();
    ForkedMutex(const ForkedMutex&) = delete;
    ForkedMutex& operator=(const ForkedMutex&) = delete;
    ~ForkedMutex();
};

}  // namespace headrace
