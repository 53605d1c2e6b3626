// Queues of slots as linked lists in two arrays, so that a slot leaves from anywhere at once. A slot is in one queue at most.
#pragma once

#include <cstdint>
#include <vector>

namespace headrace {

struct Links {
    explicit Links(size_t slots) : newer(slots, -1), older(slots, -1) {}
    std::vector<int32_t> newer, older;
};

struct Queue {
    int32_t newest = -1, oldest = -1;
    int64_t size = 0;

    void push(Links& links, int32_t slot) {
        links.older[slot] = newest;
        links.newer[slot] = -1;
        (newest >= 0 ? links.newer[newest] : oldest) = slot;
        newest = slot;
        ++size;
    }
    void take(Links& links, int32_t slot) {
        const int32_t newer = links.newer[slot], older = links.older[slot];
        (newer >= 0 ? links.older[newer] : newest) = older;
        (older >= 0 ? links.newer[older] : oldest) = newer;
        --size;
    }
    void renew(Links& links, int32_t slot) {
        take(links, slot);
        push(links, slot);
    }
};

}  // namespace headrace
