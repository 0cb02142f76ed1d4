// The backward pass of a convolution: only the places that won their pool have a gradient.
#pragma once
#include "conv_shape.h"

// FORWARD tells how the places that won are laid out.
template <class SHAPE, class FORWARD>
class ConvBackward : SHAPE {
    using typename SHAPE::IN, typename SHAPE::OUT;
    using SHAPE::KY, SHAPE::POOL, SHAPE::SX, SHAPE::SY, SHAPE::BIAS;
    using SHAPE::filter, SHAPE::inputs, SHAPE::outputs, SHAPE::padded_height, SHAPE::row_vecs, SHAPE::taps, SHAPE::vecs;
    using SHAPE::WHOLE, SHAPE::cell, SHAPE::columns, SHAPE::line, SHAPE::step, SHAPE::weights;

    static constexpr int place_x = FORWARD::place_x, place_y = FORWARD::place_y, place_o = FORWARD::place_o;
    static constexpr int cells_size = WHOLE ? 0 : padded_height * columns * cell;
    static constexpr int group_most = ACCUMULATORS / 2 - 1, group = ceil_div(vecs, ceil_div(vecs, group_most));
    static constexpr int band_bytes = 20 << 10, band_line = POOL * SY * line * 4;
    static constexpr int band = most(1, least(OUT::height, (band_bytes - KY * line * 4) / band_line));

  public:
    void clear() { std::memset(sums_, 0, weights * sizeof(float)); }

    // Adds the gradient of the weights for one image, whose outputs have the gradient g; with DATA, writes the gradient
    // of its inputs to grad.
    template <bool DATA>
    void add_image(const float* w, const float* in, float* grad, const int32_t* place, const float* g) {
        const float* from = WHOLE ? in : static_cast<float*>(cells_);
        float* back = WHOLE ? grad : static_cast<float*>(cell_grads_);
        if (!WHOLE) cut(in);
        if (DATA) std::memset(back, 0, (WHOLE ? IN::stride : cells_size) * sizeof(float));
        for (int y = 0; y < OUT::height; y += band)
            for (int o = 0; o < outputs; o++)
                filter_gradient<DATA>(from, back, w + o * filter, sums_ + o * filter, g + o, place + o * place_o, y);
        if (DATA && !WHOLE) join(grad);
        if (BIAS) bias_gradient(g);
    }

    // Adds the gradient of the weights, times scale, to target.
    void finish(float* target, float scale) const {
        for (int i = 0; i < weights; i++) target[i] += scale * sums_[i];
    }

  private:
    void bias_gradient(const float* g) {
        for (int first = 0; first < outputs; first += LANES) {
            Vec total = {};
            for (int y = 0; y < OUT::height; y++)
                for (int x = 0; x < OUT::width; x++) total += load(g + OUT::at(y, x) + first);
            for (int o = first; o < least(first + LANES, outputs); o++) sums_[outputs * filter + o] += total[o - first];
        }
    }

    void cut(const float* image) {
        constexpr int rest = taps % LANES;
        float* to = cells_;
        for (int y = 0; y < padded_height; y++)
            for (int x = 0; x < columns; x++)
                for (int v = 0; v < row_vecs; v++) {
                    Vec value = load(image + y * IN::row + x * SX * inputs + v * LANES);
                    if (rest && v == row_vecs - 1) value = first_lanes<rest>(value);
                    store(to + y * line + x * step + v * LANES, value);
                }
    }

    void join(float* image) {
        std::memset(image, 0, IN::stride * sizeof(float));
        const float* from = cell_grads_;
        for (int x = 0; x < columns; x++)
            for (int v = 0; v < row_vecs; v++)
                for (int y = 0; y < padded_height; y++) {
                    float* to = image + y * IN::row + x * SX * inputs + v * LANES;
                    store(to, load(to) + load(from + y * line + x * step + v * LANES));
                }
    }

    static INLINE int landing(const int32_t* place, int y, int x) {
        return y * POOL * SY * line + x * POOL * step + (POOL > 1 ? place[y * place_y + x * place_x] : 0);
    }

    // One filter over one band of outputs, which stays in the first-level cache: only the places that won their pool.
    template <bool DATA>
    INLINE void filter_gradient(const float* from, float* back, const float* w, float* sums, const float* g,
                                const int32_t* place, int top) {
        int bottom = least(top + band, OUT::height);
        if (!DATA) return add_band<0>(from, sums, g, place, top, bottom);
        int32_t at[band * OUT::width + 1];
        float value[band * OUT::width + 1];
        int count = 0;
        for (int y = top; y < bottom; y++)
            for (int x = 0; x < OUT::width; x++) {
                at[count] = landing(place, y, x);
                value[count] = g[OUT::at(y, x)];
                count += alive(value[count]);
            }
        add_listed<0>(from, sums, at, value, count);
        spread_listed<0>(back, w, at, value, count);
    }

    static constexpr int vec_offset(int v) { return v / row_vecs * line + v % row_vecs * LANES; }

    template <int FROM>
    static INLINE void add_band(const float* from, float* sums, const float* g, const int32_t* place, int top,
                                int bottom) {
        constexpr int width = least(group, vecs - FROM);
        Vec acc[width];
        UNROLL for (int v = 0; v < width; v++) acc[v] = load(sums + (FROM + v) * LANES);
        for (int y = top; y < bottom; y++)
            for (int x = 0; x < OUT::width; x++) {
                const float* at = from + landing(place, y, x);
                float value = g[OUT::at(y, x)];
                UNROLL for (int v = 0; v < width; v++) acc[v] += value * load(at + vec_offset(FROM + v));
            }
        UNROLL for (int v = 0; v < width; v++) store(sums + (FROM + v) * LANES, acc[v]);
        if constexpr (FROM + group < vecs) add_band<FROM + group>(from, sums, g, place, top, bottom);
    }

    template <int FROM>
    static INLINE void add_listed(const float* from, float* sums, const int32_t* at, const float* value, int count) {
        constexpr int width = least(group, vecs - FROM);
        Vec acc[width];
        UNROLL for (int v = 0; v < width; v++) acc[v] = load(sums + (FROM + v) * LANES);
        for (int k = 0; k < count; k++)
            UNROLL for (int v = 0; v < width; v++) acc[v] += value[k] * load(from + at[k] + vec_offset(FROM + v));
        UNROLL for (int v = 0; v < width; v++) store(sums + (FROM + v) * LANES, acc[v]);
        if constexpr (FROM + group < vecs) add_listed<FROM + group>(from, sums, at, value, count);
    }

    template <int FROM>
    static INLINE void spread_listed(float* back, const float* w, const int32_t* at, const float* value, int count) {
        constexpr int width = least(group, vecs - FROM);
        Vec wv[width];
        UNROLL for (int v = 0; v < width; v++) wv[v] = load(w + (FROM + v) * LANES);
        for (int k = 0; k < count; k++)
            UNROLL for (int v = 0; v < width; v++) {
                float* to = back + at[k] + vec_offset(FROM + v);
                store(to, load(to) + value[k] * wv[v]);
            }
        if constexpr (FROM + group < vecs) spread_listed<FROM + group>(back, w, at, value, count);
    }

    Buffer<float> sums_{weights}, cells_{cells_size}, cell_grads_{cells_size};
};
