// Workspaces that callers take and give back: as many as there were callers at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "forked.h"

namespace headrace {

template <class Workspace>
class Shelf {
public:
    // Calls body with a workspace that no other caller has; `make` makes one if none is idle.
    template <class Make, class Body>
    auto with(Make make, Body body) {
        std::unique_ptr<Workspace> work;
        {
            std::lock_guard lock(mutex_);
            if (idle_.empty()) {
                work = make();
                idle_.reserve(all_.size() + 1);  // giving back must not throw
                all_.push_back(work.get());
            } else {
                work = std::move(idle_.back());
                idle_.pop_back();
            }
        }
        struct GiveBack {  // also when an error leaves
            Shelf& shelf;
            std::unique_ptr<Workspace>& work;
            ~GiveBack() {
                std::lock_guard lock(shelf.mutex_);
                shelf.idle_.push_back(std::move(work));
            }
        } give_back{*this, work};
        return body(*work);
    }

    int64_t bytes() const {
        std::lock_guard lock(mutex_);
        int64_t total = 0;
        for (const Workspace* work : all_) total += work->bytes();
        return total;
    }

private:
    mutable ForkedMutex mutex_;
    std::vector<std::unique_ptr<Workspace>> idle_;
    std::vector<Workspace*> all_;
};

}  // namespace headrace
