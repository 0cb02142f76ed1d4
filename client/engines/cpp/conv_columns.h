// The forward pass of a convolution whose vectors hold neighbouring columns of one output map.
#pragma once
#include "conv_shape.h"

template <class SHAPE>
class ColumnLanes : SHAPE {
    using typename SHAPE::IN, typename SHAPE::OUT;
    using SHAPE::KX, SHAPE::KY, SHAPE::POOL, SHAPE::SX, SHAPE::SY, SHAPE::BIAS;
    using SHAPE::filter, SHAPE::inputs, SHAPE::outputs, SHAPE::padded_height, SHAPE::padded_width, SHAPE::places;
    using SHAPE::row_vecs, SHAPE::taps;

    static constexpr int map_vecs = ceil_div(OUT::width, LANES);
    static constexpr int block_most = least(outputs, most(1, ACCUMULATORS / places));
    static constexpr int blocks = ceil_div(outputs, block_most), maps = ceil_div(outputs, blocks);
    static constexpr int bias_at = KY * taps * blocks * maps, packed_size = bias_at + blocks * maps;

    static constexpr int residues = SX * POOL;
    static constexpr int planar_width = round_up(map_vecs * LANES + (SX * (POOL - 1) + KX - 1) / residues, LANES);
    static constexpr int planar_row = residues * planar_width, planar_size = inputs * padded_height * planar_row;

  public:
    // Vectors of sums that one row of outputs takes.
    static constexpr long row_cost = long(map_vecs) * blocks * maps;

    // Which of a window's outputs won the pool, laid out as the lanes that write it.
    static constexpr int place_x = 1, place_o = map_vecs * LANES, place_y = outputs * place_o;
    static constexpr int place_size = POOL > 1 ? OUT::height * place_y : 0;

    void prepare(const float* w) {
        for (int o = 0; o < outputs; o++)
            for (int ky = 0; ky < KY; ky++)
                for (int t = 0; t < taps; t++) {
                    int kx = t / inputs, i = t % inputs, block = o / maps, lane = o % maps;
                    float value = w[o * filter + ky * row_vecs * LANES + t];
                    packed_[(((block * inputs + i) * KY + ky) * KX + kx) * maps + lane] = value;
                }
        if (BIAS)
            for (int o = 0; o < outputs; o++) packed_[bias_at + o] = w[outputs * filter + o];
    }

    void forward(const float* from, float* to, int32_t* place) {
        split_columns(from);
        for (int y = 0; y < OUT::height; y++)
            for (int v = 0; v < map_vecs; v++)
                for (int block = 0; block < blocks; block++) row(to, place, y, v, block);
    }

  private:
    // Columns grouped by their residue, so that one load feeds neighbouring (pooled, strided) outputs.
    void split_columns(const float* from) {
        for (int c = 0; c < inputs; c++)
            for (int y = 0; y < padded_height; y++)
                for (int r = 0; r < residues; r++) {
                    float* to = planar_ + (c * padded_height + y) * planar_row + r * planar_width;
                    const float* row = from + y * IN::row + r * inputs + c;
                    constexpr int whole = padded_width / residues;
                    int width = least(planar_width, whole + (r < padded_width % residues));
                    for (int x = 0; x < width; x++) to[x] = row[x * residues * inputs];
                }
    }

    void row(float* to, int32_t* place, int y, int v, int block) {
        const float* w = packed_ + block * maps * inputs * KY * KX;
        const float* bias = packed_ + bias_at + block * maps;
        Vec acc[maps][places];
        UNROLL for (int o = 0; o < maps; o++)
            UNROLL for (int p = 0; p < places; p++) acc[o][p] = broadcast(bias[o]);
        const float* rows = planar_ + y * POOL * SY * planar_row + v * LANES;
        for (int i = 0; i < inputs; i++, rows += padded_height * planar_row)
            for (int ky = 0; ky < KY; ky++) {
                const float* at = opaque(rows + ky * planar_row);
                UNROLL for (int kx = 0; kx < KX; kx++, w += maps) {
                    Vec values[places];
                    UNROLL for (int p = 0; p < places; p++) {
                        int x = (p % POOL) * SX + kx;
                        int column = x % residues * planar_width + x / residues;
                        values[p] = load(at + (p / POOL) * SY * planar_row + column);
                    }
                    UNROLL for (int o = 0; o < maps; o++)
                        UNROLL for (int p = 0; p < places; p++) acc[o][p] += w[o] * values[p];
                }
            }
        float best_lanes[maps][LANES];
        int first = block * maps, count = least(maps, outputs - first);
        UNROLL for (int o = 0; o < maps; o++) {
            Vec best;
            IntVec which;
            SHAPE::pool(acc[o], best, which);
            store(best_lanes[o], best);
            if (POOL > 1 && o < count) store(place + y * place_y + (first + o) * place_o + v * LANES, which);
        }
        for (int x = v * LANES; x < least(v * LANES + LANES, OUT::width); x++)
            for (int o = 0; o < count; o++) to[OUT::at(y, x) + first + o] = best_lanes[o][x - v * LANES];
    }

    Buffer<float> packed_{packed_size}, planar_{planar_size};
};
