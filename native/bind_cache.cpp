// Caches of rows.
#include "bind.h"
#include "cache.h"
#include "merge.h"
#include "planned.h"

namespace headrace {
namespace {

// A view of one of the vectors of an access, which lives as long as the view.
template <class T, std::vector<T> Access::* member>
Made<T> vector_of(nb::handle_t<Access> self) {
    std::vector<T>& values = nb::cast<Access&>(self).*member;
    return Made<T>(values.data(), {values.size()}, self);
}

Access access_of(Cache& cache, const In1<int64_t>& ids) {
    nb::gil_scoped_release release;
    return cache.access(ids.data(), length(ids));
}

void merge(const In& cached, const In& fetched, const In1<int32_t>& source, Out out, int threads) {
    if (row_bytes(out) != row_bytes(cached) || row_bytes(out) != row_bytes(fetched)) fail("out must have rows like those of x");
    if (length(out) != length(source)) fail("out must have one row per source");
    check_apart({{"out", out}}, {{"cached", cached}, {"fetched", fetched}, {"source", source}});
    const int64_t cached_rows = length(cached), fetched_rows = length(fetched);
    nb::gil_scoped_release release;
    merge_rows(static_cast<const char*>(cached.data()), cached_rows, static_cast<const char*>(fetched.data()), fetched_rows,
               row_bytes(out), source.data(), length(source), static_cast<char*>(out.data()), threads);
}

void keep(const In& fetched, const In1<int32_t>& slots, Out cached, int threads) {
    if (row_bytes(fetched) != row_bytes(cached)) fail("cached must have rows like those that were fetched");
    if (length(fetched) != length(slots)) fail("slots must have one element per fetched row");
    check_apart({{"cached", cached}}, {{"fetched", fetched}, {"slots", slots}});
    const int64_t rows = length(cached);
    nb::gil_scoped_release release;
    keep_rows(static_cast<const char*>(fetched.data()), row_bytes(fetched), slots.data(), length(slots),
              static_cast<char*>(cached.data()), rows, threads);
}

}  // namespace

void bind_cache(nb::module_& m) {
    nb::class_<Access>(m, "Access")
        .def_prop_ro("source", &vector_of<int32_t, &Access::source>)
        .def_prop_ro("fetch", &vector_of<int64_t, &Access::fetch>)
        .def_prop_ro("fill", &vector_of<int32_t, &Access::fill>)
        .def_prop_ro("evicted", &vector_of<int64_t, &Access::evicted>)
        .def_ro("hits", &Access::hits);
    nb::class_<Cache>(m, "Cache")
        .def("access", &access_of, "ids"_a.noconvert())
        .def("finish", &Cache::finish, "access"_a, "filled"_a)
        .def("find", [](Cache& cache, const In1<int64_t>& ids) { return cache.find(ids.data(), length(ids)); },
             "ids"_a.noconvert())
        .def("forget", [](Cache& cache, const In1<int32_t>& slots) { cache.forget(slots.data(), length(slots)); },
             "slots"_a.noconvert())
        .def_prop_ro("rows_held", &Cache::rows_held);
    nb::class_<OnlineCache, Cache>(m, "OnlineCache")
        .def(nb::init<const std::string&, int64_t, int64_t>(), "policy"_a, "nodes"_a, "capacity"_a);
    nb::class_<PlannedCache, Cache>(m, "PlannedCache")
        .def(nb::init<int64_t, int64_t, int64_t>(), "nodes"_a, "capacity"_a, "lookahead"_a)
        .def("announce",
             [](PlannedCache& cache, const In1<int64_t>& ids) {
                 nb::gil_scoped_release release;
                 cache.announce(ids.data(), length(ids));
             },
             "ids"_a.noconvert())
        .def("restart", &PlannedCache::restart)
        .def("first_difference",
             [](const PlannedCache& cache, const In1<int64_t>& ids) { return cache.first_difference(ids.data(), length(ids)); },
             "ids"_a.noconvert())
        .def_prop_ro("announced", &PlannedCache::announced);
    m.def("merge_rows", &merge, "cached"_a.noconvert(), "fetched"_a.noconvert(), "source"_a.noconvert(), "out"_a.noconvert(),
          "threads"_a);
    m.def("keep_rows", &keep, "fetched"_a.noconvert(), "slots"_a.noconvert(), "cached"_a.noconvert(), "threads"_a);
}

}  // namespace headrace
