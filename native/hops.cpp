#include "hops.h"

#include <optional>

#include "builder.h"
#include "common.h"
#include "table.h"

namespace headrace {
namespace {

template <class Id, class Table>
class TableHops final : public Hops<Id> {
public:
    explicit TableHops(int64_t nodes) : nodes_(nodes) {}

    void begin(const int64_t* seeds, int64_t count, const std::shared_ptr<Pool>& pool) override {
        sample_.reset();
        sample_.emplace(table_, nodes_, seeds, count, false, pool);
    }

    std::pair<const Id*, int64_t> frontier() const override {
        require(sample_.has_value(), "no sample is begun");
        return {sample_->frontier_nodes(), sample_->frontier()};
    }

    void add(const int64_t* drawer, int64_t count, const std::vector<DrawnRows<Id>>& drawn, int threads) override {
        require(sample_.has_value(), "no sample is begun");
        require(count == sample_->frontier(), "every node of the frontier must have a drawer");
        struct Drop {  // a hop that failed halfway
            std::optional<SampleBuilder<Id, Table>>* sample;
            ~Drop() {
                if (sample) sample->reset();
            }
        } drop{&sample_};
        const auto cursors = read_counts(drawer, count, drawn, sample_->counts());
        const int64_t added = sample_->open_hop();
        read_neighbors(drawer, count, cursors, added);
        sample_->number_all(raw_.data(), useful_threads(threads, added, 4096), is_new_);
        sample_->close_hop();
        drop.sample = nullptr;
    }

    SampleResult finish() override {
        require(sample_.has_value(), "no sample is begun");
        SampleResult result = sample_->take();
        sample_.reset();
        return result;
    }

    int64_t workspace_bytes() const override {
        return table_.bytes() + static_cast<int64_t>(raw_.capacity() * sizeof(Id) + is_new_.capacity());
    }

private:
    // Checks that the rows are as long as they say; returns where the neighbors of each drawer begin.
    static std::vector<const Id*> read_counts(const int64_t* drawer, int64_t count, const std::vector<DrawnRows<Id>>& drawn,
                                              int64_t* counts) {
        const auto drawers = static_cast<int64_t>(drawn.size());
        std::vector<int64_t> rows(drawn.size(), 0), left(drawn.size());
        for (int64_t i = 0; i < count; ++i) {
            require(drawer[i] >= 0 && drawer[i] < drawers, "a drawer is out of range");
            ++rows[static_cast<size_t>(drawer[i])];
        }
        std::vector<const Id*> next(drawn.size()), neighbors(drawn.size());
        for (size_t d = 0; d < drawn.size(); ++d) {
            left[d] = drawn[d].size - rows[d];
            require(left[d] >= 0, "drawn rows are too short for their nodes");
            next[d] = drawn[d].data;
            neighbors[d] = drawn[d].data + rows[d];
        }
        for (int64_t i = 0; i < count; ++i) {
            const auto d = static_cast<size_t>(drawer[i]);
            const auto take = static_cast<int64_t>(*next[d]++);
            require(take >= 0 && take <= left[d], "drawn rows are shorter than they say");
            left[d] -= take;
            counts[i] = take;
        }
        for (const int64_t rest : left) require(rest == 0, "drawn rows are longer than they say");
        return neighbors;
    }

    // Puts the neighbors in the order of the frontier.
    void read_neighbors(const int64_t* drawer, int64_t count, std::vector<const Id*> next, int64_t added) {
        if (static_cast<int64_t>(raw_.size()) < added) raw_.resize(static_cast<size_t>(added));
        const int64_t* offsets = sample_->offsets();
        Id* to = raw_.data();
        bool inside = true;
        for (int64_t i = 0; i < count; ++i) {
            const Id*& from = next[static_cast<size_t>(drawer[i])];
            for (int64_t stop = offsets[i + 1] - offsets[i]; stop > 0; --stop) {
                inside &= *from >= 0 && static_cast<int64_t>(*from) < nodes_;
                *to++ = *from++;
            }
        }
        require(inside, "a neighbor is out of range");
    }

    const int64_t nodes_;
    Table table_;
    std::optional<SampleBuilder<Id, Table>> sample_;
    std::vector<Id> raw_;  // neighbors before they are numbered
    std::vector<uint8_t> is_new_;
};

}  // namespace

template <class Id>
std::unique_ptr<Hops<Id>> make_hops(int64_t nodes, bool hash) {
    if (hash) return std::make_unique<TableHops<Id, HashTable<Id>>>(nodes);
    return std::make_unique<TableHops<Id, StampTable<Id>>>(nodes);
}

template std::unique_ptr<Hops<int32_t>> make_hops(int64_t, bool);
template std::unique_ptr<Hops<int64_t>> make_hops(int64_t, bool);

}  // namespace headrace
