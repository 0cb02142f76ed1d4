// What the passes of a convolution share: its sizes, the layout of its weights and the cells of its input.
#pragma once
#include "simd.h"

// POOL is 1 (none) or 2 (windows of 2x2, step 2). Weights: [out][ky][kx, in], each (kx, in) row padded to whole vectors
// with zeros; then the biases.
template <class IN_, class OUT_, int KY_, int KX_, int SY_, int SX_, bool BIAS_, bool RELU_, int POOL_>
struct ConvShape {
    using IN = IN_;
    using OUT = OUT_;
    static constexpr int KY = KY_, KX = KX_, SY = SY_, SX = SX_, POOL = POOL_;
    static constexpr bool BIAS = BIAS_, RELU = RELU_;

    static constexpr int inputs = IN::channels, outputs = OUT::channels;
    static constexpr int taps = KX * inputs, row_vecs = ceil_div(taps, LANES), vecs = KY * row_vecs;
    static constexpr int filter = vecs * LANES;
    static constexpr int weights = round_up(outputs * filter + (BIAS ? outputs : 0), LANES);
    static constexpr int places = POOL * POOL;
    static constexpr int padded_height = IN::height + 2 * IN::pad_y, padded_width = IN::width + 2 * IN::pad_x;

    // Backward reads the input as the rows of (kx, in) under the filter, one cell for each row and column: on whole
    // vectors, because loads and stores that straddle cache lines, or overlap by halves, cost several times as much.
    static constexpr bool WHOLE = inputs % LANES == 0;
    static constexpr int columns = OUT::width * POOL, cell = row_vecs * LANES;
    static constexpr int step = WHOLE ? SX * inputs : cell, line = WHOLE ? IN::row : columns * cell;

    static constexpr int cell_offset(int p) { return (p / POOL) * SY * line + (p % POOL) * step; }

    // The first maximum in scan order wins, and NaN wins over all, as in torch. The winner's place is the offset of its
    // cell, which tells backward where the gradient goes.
    static INLINE void pool(const Vec (&acc)[places], Vec& best, IntVec& place) {
        best = acc[0];
        place = IntVec{};
        UNROLL for (int p = 1; p < places; p++) {
            IntVec better = (acc[p] > best) | (acc[p] != acc[p]);
            best = better ? acc[p] : best;
            place = better ? (IntVec{} + cell_offset(p)) : place;
        }
        if (RELU) best = relu(best);
    }
};
