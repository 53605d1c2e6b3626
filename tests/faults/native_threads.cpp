// The native module's own threads for ThreadSanitizer: a crew under a training step, pools and shelves shared by callers, reads from a
// file. Built by sanitize_threads.sh without OpenMP, whose libgomp synchronizes in ways that the sanitizer does not see.
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <thread>
#include <unistd.h>
#include <vector>

#include "../../native/crew.h"
#include "../../native/link_step.h"
#include "../../native/pool.h"
#include "../../native/read.h"
#include "../../native/shelf.h"

namespace headrace {
namespace baseline {  // vector_shared.cpp and vector_link.cpp: all that a step of link prediction calls
void softmax_block(SoftmaxBlock&);
void join(Joined, const float*, const float*, bool, int64_t, float*);
void join_gradient(Joined, const float*, const float*, const float*, bool, int64_t, float*, float*, bool);
void add_row(float*, const float*, const float*, int64_t);
void adagrad(const float*, const float*, bool, float, float, int64_t, float*, float*);
}  // namespace baseline
const VectorTable& vector_table() {
    static const VectorTable table = [] {
        VectorTable t{};
        t.softmax_block = baseline::softmax_block;
        t.join = baseline::join;
        t.join_gradient = baseline::join_gradient;
        t.add_row = baseline::add_row;
        t.adagrad = baseline::adagrad;
        return t;
    }();
    return table;
}
}  // namespace headrace

using namespace headrace;

namespace {

void expect(bool ok, const char* what) {
    if (ok) return;
    std::fprintf(stderr, "wrong: %s\n", what);
    std::exit(1);
}

template <class Body>
void in_threads(int count, Body body) {
    std::vector<std::thread> threads;
    for (int t = 0; t < count; ++t) threads.emplace_back(body, t);
    for (std::thread& thread : threads) thread.join();
}

void crews() {
    Crew crew;
    for (int run = 0; run < 2000; ++run) {
        const int64_t count = run % 37;
        std::vector<int64_t> done(static_cast<size_t>(count), 0);  // one writer each, and read after the run
        crew.run(count, 1 + run / 100 % 4, [&](int64_t task, int) { done[static_cast<size_t>(task)] += task + 1; });
        expect(std::accumulate(done.begin(), done.end(), int64_t{0}) == count * (count + 1) / 2, "every task is done once");
    }
}

void steps() {
    constexpr int64_t rows = 500, width = 16, edges = 256, negatives = 64;
    std::vector<float> table(rows * width), state(rows), parameters(4 * width), parameter_state(4 * width);
    std::vector<int64_t> place(2 * edges + negatives), relation(edges);
    for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<float>(i % 13) * 0.01f;
    for (size_t i = 0; i < place.size(); ++i) place[i] = static_cast<int64_t>(i * 31 % rows);
    for (size_t i = 0; i < relation.size(); ++i) relation[i] = static_cast<int64_t>(i % 4);
    LinkStep in;
    in.kind = Joined::distmult;
    in.edges = edges, in.negatives = negatives, in.width = width, in.row_count = in.table_rows = rows, in.relations = 4;
    in.rows = table.data(), in.state = state.data(), in.place = place.data(), in.relation = relation.data();
    in.parameters = parameters.data(), in.parameter_state = parameter_state.data();
    in.update = {Optimizer::row_adagrad, 0.1f, 1e-6f};
    in.relation_update = {Optimizer::adagrad, 0.1f, 1e-6f};
    LinkWorkspace workspace;
    for (int i = 0; i < 50; ++i) expect(workspace.step(in, 1 + i % 4) > 0, "a step has a loss");
}

void pools() {
    const auto pool = std::make_shared<Pool>(int64_t{1} << 16);
    Shelf<std::vector<int64_t>> shelf;
    in_threads(4, [&](int t) {
        for (int i = 0; i < 500; ++i) {
            Buffer buffer(pool, static_cast<size_t>(64 + i % 7 * 4096));
            buffer.as<char>()[0] = static_cast<char>(t);
            buffer.grow(buffer.bytes() * 2, 1);
            expect(buffer.as<char>()[0] == static_cast<char>(t), "a buffer has one owner");
            shelf.with([] { return std::make_unique<std::vector<int64_t>>(1); }, [&](std::vector<int64_t>& work) { ++work[0]; });
            if (i % 50 == 0) pool->clear();
        }
    });
    expect(pool->stats().in_use == 0, "all buffers are back");
}

void reads() {
    std::FILE* file = std::tmpfile();
    constexpr int64_t rows = 4096, bytes = 512;
    std::vector<char> content(rows * bytes), out(rows * bytes);
    for (size_t i = 0; i < content.size(); ++i) content[i] = static_cast<char>(i / bytes);
    expect(std::fwrite(content.data(), 1, content.size(), file) == content.size() && std::fflush(file) == 0, "the file is written");
    std::vector<int64_t> ids(rows);
    for (int64_t i = 0; i < rows; ++i) ids[static_cast<size_t>(i)] = rows - 1 - i;
    for (int i = 0; i < 10; ++i) {
        read_rows(FileRows{fileno(file), 0, rows, bytes}, ids.data(), rows, nullptr, rows, out.data(), 4);
        expect(out[0] == content[content.size() - 1] && out.back() == content[0], "rows are those of the file");
        bool refused = false;
        try {  // all threads meet the end of the file
            read_rows(FileRows{fileno(file), rows * bytes, rows, bytes}, ids.data(), rows, nullptr, rows, out.data(), 4);
        } catch (const std::invalid_argument&) {
            refused = true;
        }
        expect(refused, "a file that is too short is refused");
    }
    std::fclose(file);
}

}  // namespace

// Called in a forked child, of which there is none here: this program has no parallel loops, so it is linked without OpenMP.
extern "C" void omp_set_max_active_levels(int) {}

int main() {
    crews();
    steps();
    pools();
    reads();
    std::puts("threads: 2,000 runs of a crew, 50 training steps, 2,000 buffers of a pool, 20 parallel reads, clean");
}
