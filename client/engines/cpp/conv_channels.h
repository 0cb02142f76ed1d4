// The forward pass of a convolution whose vectors hold neighbouring output channels.
#pragma once
#include "conv_shape.h"

template <class SHAPE>
class ChannelLanes : SHAPE {
    using typename SHAPE::IN, typename SHAPE::OUT;
    using SHAPE::KX, SHAPE::KY, SHAPE::POOL, SHAPE::SX, SHAPE::SY, SHAPE::BIAS;
    using SHAPE::filter, SHAPE::inputs, SHAPE::outputs, SHAPE::places, SHAPE::row_vecs, SHAPE::taps;

    static constexpr int channel_vecs = ceil_div(outputs, LANES);
    static constexpr int block_vecs = channel_vecs % 2 == 0 ? 2 : channel_vecs % 3 == 0 ? 3 : 1;
    static constexpr int blocks = channel_vecs / block_vecs, lanes = block_vecs * LANES;
    static constexpr int tile_most = most(1, ACCUMULATORS / (places * block_vecs));
    static constexpr int tile = ceil_div(OUT::width, ceil_div(OUT::width, tile_most));
    static constexpr int bias_at = KY * taps * channel_vecs * LANES, packed_size = bias_at + channel_vecs * LANES;

    // Whether the registers hold the weights of a row beside the sums.
    static constexpr bool KEEP = block_vecs == 1 && tile * places + POOL * KX < ACCUMULATORS + 8 && ACCUMULATORS > 12;

    using Sums = Vec[block_vecs][places];

  public:
    // Vectors of sums that one row of outputs takes.
    static constexpr long row_cost = long(OUT::width) * channel_vecs;

    // Which of a window's outputs won the pool, laid out as the lanes that write it.
    static constexpr int place_x = outputs, place_o = 1, place_y = OUT::width * outputs;
    static constexpr int place_size = POOL > 1 ? OUT::height * place_y : 0;

    void prepare(const float* w) {
        for (int o = 0; o < outputs; o++)
            for (int ky = 0; ky < KY; ky++)
                for (int t = 0; t < taps; t++) {
                    int block = o / lanes, lane = o % lanes;
                    packed_[((block * KY + ky) * taps + t) * lanes + lane] = w[o * filter + ky * row_vecs * LANES + t];
                }
        if (BIAS)
            for (int o = 0; o < outputs; o++) packed_[bias_at + o] = w[outputs * filter + o];
    }

    void forward(const float* from, float* to, int32_t* place) {
        for (int block = 0; block < blocks; block++)
            for (int y = 0; y < OUT::height; y++) row<0>(from, to, place, block, y);
    }

  private:
    static constexpr int place_offset(int p) { return (p / POOL) * SY * IN::row + (p % POOL) * SX * inputs; }
    static constexpr int window_offset(int y, int x) { return y * POOL * SY * IN::row + x * POOL * SX * inputs; }

    template <int X>
    INLINE void row(const float* from, float* to, int32_t* place, int block, int y) {
        constexpr int width = least(tile, OUT::width - X);
        add_tile<width>(from + window_offset(y, X), to + OUT::at(y, X), place + y * place_y + X * place_x, block);
        if constexpr (X + tile < OUT::width) row<X + tile>(from, to, place, block, y);
    }

    template <int WIDTH>
    void add_tile(const float* from, float* to, int32_t* place, int block) {
        const float* w = packed_ + block * KY * taps * lanes;
        Sums acc[WIDTH];
        UNROLL for (int b = 0; b < block_vecs; b++) {
            Vec bias = load(packed_ + bias_at + block * lanes + b * LANES);
            UNROLL for (int x = 0; x < WIDTH; x++)
                UNROLL for (int p = 0; p < places; p++) acc[x][b][p] = bias;
        }
        if constexpr (KEEP)
            for (int y = 0; y < KY + (POOL - 1) * SY; y++, from += IN::row) {
                if (y < KY && (POOL == 1 || y < SY)) add_row<WIDTH, 1>(from, w, y, acc);
                else if (y < KY) add_row<WIDTH, 3>(from, w, y, acc);
                else if (y >= SY) add_row<WIDTH, 2>(from, w, y, acc);
            }
        else
            add_taps<WIDTH>(from, w, acc);
        UNROLL for (int x = 0; x < WIDTH; x++)
            UNROLL for (int b = 0; b < block_vecs; b++) {
                Vec best;
                IntVec which;
                SHAPE::pool(acc[x][b], best, which);
                int first = block * lanes + b * LANES, count = least(LANES, outputs - first);
                put(to + x * outputs + first, best, count);
                if (POOL > 1) put(place + x * outputs + first, which, count);
            }
    }

    template <int WIDTH>
    static INLINE void add_taps(const float* from, const float* w, Sums (&acc)[WIDTH]) {
        for (int ky = 0; ky < KY; ky++, from += IN::row)
            for (int t = 0; t < taps; t++, w += lanes) {
                Vec wv[block_vecs];
                UNROLL for (int b = 0; b < block_vecs; b++) wv[b] = load(w + b * LANES);
                UNROLL for (int x = 0; x < WIDTH; x++)
                    UNROLL for (int p = 0; p < places; p++) {
                        float value = from[window_offset(0, x) + place_offset(p) + t];
                        UNROLL for (int b = 0; b < block_vecs; b++) acc[x][b][p] += value * wv[b];
                    }
            }
    }

    // One row of inputs, for the rows of outputs in the bit set ROWS: every weight and every input is loaded once.
    template <int WIDTH, int ROWS>
    static INLINE void add_row(const float* from, const float* w, int y, Sums (&acc)[WIDTH]) {
        constexpr int span = (WIDTH * POOL - 1) * SX + KX;
        for (int i = 0; i < inputs; i++) {
            Vec wv[POOL][KX];
            UNROLL for (int r = 0; r < POOL; r++)
                UNROLL for (int kx = 0; kx < KX; kx++)
                    if (ROWS >> r & 1) wv[r][kx] = load(w + ((y - r * SY) * taps + kx * inputs + i) * LANES);
            UNROLL for (int x = 0; x < span; x++) {
                Vec value = broadcast(from[x * inputs + i]);
                UNROLL for (int kx = 0; kx < KX; kx++) {
                    int column = (x - kx) / SX;
                    if (x < kx || (x - kx) % SX || column >= WIDTH * POOL) continue;
                    UNROLL for (int r = 0; r < POOL; r++)
                        if (ROWS >> r & 1) acc[column / POOL][0][r * POOL + column % POOL] += value * wv[r][kx];
                }
            }
        }
    }

    template <class T, class W>
    static INLINE void put(T* to, W value, int count) {
        if (outputs % LANES == 0 || count == LANES) return store(to, value);
        T lane[LANES];
        store(lane, value);
        constexpr int rest = outputs % LANES;
        std::memcpy(to, lane, rest * sizeof(T));
    }

    Buffer<float> packed_{packed_size};
};
