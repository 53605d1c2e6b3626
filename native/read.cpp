#include "read.h"

#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>
#include <vector>

#include "common.h"
#include "csr.h"

namespace headrace {
namespace {

constexpr int64_t kCall = 1 << 20;    // bytes per system call at most: enough to be worth it, small enough to share out
constexpr size_t kPieces = 512;       // of memory one call fills; systems allow 1024
constexpr int64_t kGrain = 16 << 10;  // bytes of rows worth a thread: about one seek of a fast disk

struct Wanted {
    int64_t row, place;
};

// Fills the pieces from `at` on. A call may stop early (a signal, its limit), so it is repeated from where it stopped.
void read_fully(const FileRows& file, std::vector<iovec>& pieces, int64_t first_row, int64_t at) {
    size_t next = 0;
    int64_t done = 0;
    while (next < pieces.size()) {
        const ssize_t got = preadv(file.fd, pieces.data() + next, static_cast<int>(pieces.size() - next), at + done);
        if (got < 0 && errno == EINTR) continue;
        const std::string row = "row " + std::to_string(first_row + done / file.row_bytes);
        if (got < 0) throw std::invalid_argument(row + " cannot be read: " + std::strerror(errno));
        if (got == 0) throw std::invalid_argument(row + " lies behind the end of the file: it was cut short");
        done += got;
        for (size_t left = static_cast<size_t>(got); left > 0;) {
            const size_t step = std::min(left, pieces[next].iov_len);
            pieces[next].iov_base = static_cast<char*>(pieces[next].iov_base) + step;
            pieces[next].iov_len -= step;
            left -= step;
            if (pieces[next].iov_len == 0) ++next;
        }
    }
}

void read_range(const FileRows& file, const Wanted* wanted, int64_t count, char* out) {
    std::vector<iovec> pieces;
    for (int64_t begin = 0; begin < count;) {
        pieces.clear();
        int64_t end = begin, bytes = 0;
        for (; end < count; ++end) {
            char* place = out + wanted[end].place * file.row_bytes;
            const int64_t step = end == begin ? 1 : wanted[end].row - wanted[end - 1].row;
            if (step == 0) continue;  // once more: copied below
            if (step > 1 || (end > begin && bytes + file.row_bytes > kCall)) break;
            if (!pieces.empty() && static_cast<char*>(pieces.back().iov_base) + pieces.back().iov_len == place)
                pieces.back().iov_len += static_cast<size_t>(file.row_bytes);
            else if (pieces.size() == kPieces)
                break;
            else
                pieces.push_back({place, static_cast<size_t>(file.row_bytes)});
            bytes += file.row_bytes;
        }
        read_fully(file, pieces, wanted[begin].row, file.offset + wanted[begin].row * file.row_bytes);
        for (int64_t i = begin + 1; i < end; ++i)
            if (wanted[i].row == wanted[i - 1].row)
                std::memcpy(out + wanted[i].place * file.row_bytes, out + wanted[i - 1].place * file.row_bytes,
                            static_cast<size_t>(file.row_bytes));
        begin = end;
    }
}

}  // namespace

template <class Id>
void read_rows(const FileRows& file, const Id* ids, int64_t count, const int64_t* positions, int64_t out_rows, char* out,
               int threads) {
    const IdRange<Id> range = id_range(ids, count, 1);
    require(count == 0 || (range.least >= 0 && range.most < file.num_rows), "id out of range");
    if (positions) {
        const IdRange<int64_t> places = id_range(positions, count, 1);
        require(count == 0 || (places.least >= 0 && places.most < out_rows), "position out of range");
    }
    require(positions || out_rows >= count, "out has too few rows");
    if (count == 0 || file.row_bytes == 0) return;
    std::vector<Wanted> wanted(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) wanted[i] = {static_cast<int64_t>(ids[i]), positions ? positions[i] : i};
    std::sort(wanted.begin(), wanted.end(),
              [](const Wanted& a, const Wanted& b) { return a.row < b.row || (a.row == b.row && a.place < b.place); });

    threads = static_cast<int>(std::min<int64_t>(useful_threads(threads, count * file.row_bytes, kGrain), count));
    // Threads of their own, for they wait: those of OpenMP would keep the processors from threads that compute.
    const int64_t parts = std::min<int64_t>(count, threads == 1 ? 1 : threads * 4);
    std::atomic<int64_t> next{0};
    FirstError error;
    const auto work = [&] {
        for (int64_t part; !error.any() && (part = next.fetch_add(1)) < parts;) {
            const int64_t begin = cut(count, parts, part), end = cut(count, parts, part + 1);
            error.guard([&] { read_range(file, wanted.data() + begin, end - begin, out); });
        }
    };
    std::vector<std::thread> others;
    others.reserve(static_cast<size_t>(threads));
    try {
        for (int t = 1; t < threads; ++t) others.emplace_back(work);
    } catch (const std::exception&) {  // no more threads to be had: those there are do the work
    }
    work();
    for (std::thread& t : others) t.join();
    error.rethrow();
}

template void read_rows(const FileRows&, const int32_t*, int64_t, const int64_t*, int64_t, char*, int);
template void read_rows(const FileRows&, const int64_t*, int64_t, const int64_t*, int64_t, char*, int);

}  // namespace headrace
