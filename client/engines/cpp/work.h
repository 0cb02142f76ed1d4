// One client's part of an order, as native.py describes it.
#pragma once
#include <algorithm>

#include "parameters.h"

namespace {

// Larger batches are taken in parts of this many images, so that memory stays bounded.
constexpr int IMAGES = 8;

struct Work {
    const void* x;
    const int64_t* y;
    int64_t rows, is_float;
    const int64_t* steps;
    int64_t iterations, batch;
    const int64_t* judged;
    int64_t judged_count;
};

enum Status { OK = 0, BAD_ROW = 1, BAD_LABEL = 2, NO_MEMORY = 3 };

// Examples lie anywhere in memory; the next batch is asked for while this one is computed.
void prefetch(const Work& work, const int64_t* rows) {
    const size_t bytes = size_t(First::In::size) * (work.is_float ? sizeof(float) : 1);
    for (int64_t n = 0; n < std::min<int64_t>(IMAGES, work.batch); n++)
        for (size_t at = 0; at < bytes; at += 64)
            __builtin_prefetch(static_cast<const char*>(work.x) + size_t(rows[n]) * bytes + at);
}

Status check(const Work& work) {
    const int64_t* lists[2] = {work.steps, work.judged};
    const int64_t counts[2] = {work.iterations * work.batch, work.judged_count};
    for (int list = 0; list < 2; list++)
        for (int64_t i = 0; i < counts[list]; i++) {
            int64_t row = lists[list][i];
            if (row < 0 || row >= work.rows) return BAD_ROW;
            if (work.y[row] < 0 || work.y[row] >= CLASSES) return BAD_LABEL;
        }
    return OK;
}

}  // namespace
