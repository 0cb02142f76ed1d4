// Convolution, with ReLU and 2x2 max-pooling fused into it.
#pragma once
#include "simd.h"

// POOL is 1 (none) or 2 (windows of 2x2, step 2). Weights: [out][ky][kx, in], each (kx, in) row padded to whole vectors
// with zeros; then the biases.
template <class IN, class OUT, int KY, int KX, int SY, int SX, bool BIAS, bool RELU, int POOL>
class Conv {
  public:
    using In = IN;
    static constexpr int inputs = IN::channels, outputs = OUT::channels;
    static constexpr int taps = KX * inputs, row_vecs = ceil_div(taps, LANES), vecs = KY * row_vecs;
    static constexpr int filter = vecs * LANES;
    static constexpr int weights = round_up(outputs * filter + (BIAS ? outputs : 0), LANES);
    static constexpr int torch_size = outputs * (inputs * KY * KX + (BIAS ? 1 : 0));
    static constexpr int places = POOL * POOL;

    explicit Conv(int images)
        : in(size_t(images) * IN::stride), grad(size_t(images) * IN::stride), place_(size_t(images) * place_size),
          packed_(packed_size), planar_(BY_CHANNEL ? 0 : planar_size) {}

    Buffer<float> in, grad;

    static int torch_index(int o, int i, int ky, int kx) { return ((o * inputs + i) * KY + ky) * KX + kx; }
    static int native_index(int o, int i, int ky, int kx) {
        return o * filter + ky * row_vecs * LANES + kx * inputs + i;
    }

    // Calls pair(native index, torch index) for every parameter.
    template <class F>
    static void each(F pair) {
        for (int o = 0; o < outputs; o++)
            for (int i = 0; i < inputs; i++)
                for (int ky = 0; ky < KY; ky++)
                    for (int kx = 0; kx < KX; kx++) pair(native_index(o, i, ky, kx), torch_index(o, i, ky, kx));
        if (BIAS)
            for (int o = 0; o < outputs; o++) pair(outputs * filter + o, outputs * inputs * KY * KX + o);
    }

    // Reads one image, channels outermost.
    template <class READ>
    void fill(int image, READ pixel) {
        float* to = in + size_t(image) * IN::stride;
        for (int c = 0; c < inputs; c++)
            for (int y = 0; y < IN::height; y++)
                for (int x = 0; x < IN::width; x++)
                    to[IN::at(y, x) + c] = pixel((c * IN::height + y) * IN::width + x);
    }

    void prepare(const float* w) {
        for (int o = 0; o < outputs; o++)
            for (int ky = 0; ky < KY; ky++)
                for (int t = 0; t < taps; t++) {
                    float value = w[o * filter + ky * row_vecs * LANES + t];
                    if (BY_CHANNEL) {
                        int block = o / (channel_block * LANES), lane = o % (channel_block * LANES);
                        packed_[((block * KY + ky) * taps + t) * channel_block * LANES + lane] = value;
                    } else {
                        int kx = t / inputs, i = t % inputs, block = o / map_block, lane = o % map_block;
                        packed_[(((block * inputs + i) * KY + ky) * KX + kx) * map_block + lane] = value;
                    }
                }
        if (BIAS)
            for (int o = 0; o < outputs; o++) packed_[bias_at + o] = w[outputs * filter + o];
    }

    void forward(const float*, int images, float* out) {
        for (int n = 0; n < images; n++) {
            const float* from = in + size_t(n) * IN::stride;
            float* to = out + size_t(n) * OUT::stride;
            int32_t* place = place_ + size_t(n) * place_size;
            if constexpr (BY_CHANNEL)
                for (int block = 0; block < channel_blocks; block++)
                    for (int y = 0; y < OUT::height; y++) channel_row<0>(from, to, place, block, y);
            else {
                split_columns(from);
                for (int y = 0; y < OUT::height; y++)
                    for (int v = 0; v < map_vecs; v++)
                        for (int block = 0; block < map_blocks; block++) map_row(to, place, y, v, block);
            }
        }
    }

    // target += scale * gradient; target may be w itself, which is not read any more by then.
    template <bool FIRST>
    void backward(const float* w, float* target, float scale, int images, const float* out, float* grad_out) {
        std::memset(sums_, 0, weights * sizeof(float));
        for (int n = 0; n < images; n++) {
            float* g = grad_out + size_t(n) * OUT::stride;
            if (RELU) mask_gradient<OUT>(out + size_t(n) * OUT::stride, g);
            image_gradient<!FIRST>(w, n, g);
            if (BIAS) bias_gradient(g);
        }
        for (int i = 0; i < weights; i++) target[i] += scale * sums_[i];
    }

  private:
    static constexpr int padded_height = IN::height + 2 * IN::pad_y, padded_width = IN::width + 2 * IN::pad_x;
    // Lanes hold output channels (BY_CHANNEL) or neighbouring columns of one output map: whichever wastes fewer.
    static constexpr int channel_vecs = ceil_div(outputs, LANES);
    static constexpr int channel_block = channel_vecs % 2 == 0 ? 2 : channel_vecs % 3 == 0 ? 3 : 1;
    static constexpr int channel_blocks = channel_vecs / channel_block;
    static constexpr int tile_most = most(1, ACCUMULATORS / (places * channel_block));
    static constexpr int tile = ceil_div(OUT::width, ceil_div(OUT::width, tile_most));

    // Whether the registers hold the weights of a row beside the sums.
    static constexpr bool KEEP =
        channel_block == 1 && tile * places + POOL * KX < ACCUMULATORS + 8 && ACCUMULATORS > 12;

    static constexpr int map_vecs = ceil_div(OUT::width, LANES);
    static constexpr int map_block_most = least(outputs, most(1, ACCUMULATORS / places));
    static constexpr int map_blocks = ceil_div(outputs, map_block_most);
    static constexpr int map_block = ceil_div(outputs, map_blocks);
    static constexpr int residues = SX * POOL;
    static constexpr int planar_width = round_up(map_vecs * LANES + (SX * (POOL - 1) + KX - 1) / residues, LANES);
    static constexpr int planar_row = residues * planar_width, planar_size = inputs * padded_height * planar_row;

    static constexpr bool BY_CHANNEL =
        long(outputs) * map_vecs * map_blocks * map_block >= long(OUT::width) * channel_vecs * outputs;
    // Which of a window's outputs won the pool, as the offset of its cell; laid out as the lanes that write it.
    static constexpr int place_x = BY_CHANNEL ? outputs : 1, place_o = BY_CHANNEL ? 1 : map_vecs * LANES;
    static constexpr int place_y = BY_CHANNEL ? OUT::width * outputs : outputs * place_o;
    static constexpr int place_size = POOL > 1 ? OUT::height * place_y : 0;
    static constexpr int bias_at = KY * taps * (BY_CHANNEL ? channel_vecs * LANES : map_blocks * map_block);
    static constexpr int packed_size = bias_at + most(channel_vecs * LANES, map_blocks * map_block);

    static constexpr int place_offset(int p) { return (p / POOL) * SY * IN::row + (p % POOL) * SX * inputs; }
    static constexpr int window_offset(int y, int x) { return y * POOL * SY * IN::row + x * POOL * SX * inputs; }

    // The first maximum in scan order wins, and NaN wins over all, as in torch.
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

    template <int X>
    INLINE void channel_row(const float* from, float* to, int32_t* place, int block, int y) {
        constexpr int width = least(tile, OUT::width - X);
        channel_tile<width>(from + window_offset(y, X), to + OUT::at(y, X), place + y * place_y + X * place_x, block);
        if constexpr (X + tile < OUT::width) channel_row<X + tile>(from, to, place, block, y);
    }

    template <int WIDTH>
    void channel_tile(const float* from, float* to, int32_t* place, int block) {
        constexpr int lanes = channel_block * LANES;
        const float* w = packed_ + block * KY * taps * lanes;
        Vec acc[WIDTH][channel_block][places];
        UNROLL for (int b = 0; b < channel_block; b++) {
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
            UNROLL for (int b = 0; b < channel_block; b++) {
                Vec best;
                IntVec which;
                pool(acc[x][b], best, which);
                int first = block * lanes + b * LANES, count = least(LANES, outputs - first);
                put(to + x * outputs + first, best, count);
                if (POOL > 1) put(place + x * outputs + first, which, count);
            }
    }

    template <int WIDTH>
    static INLINE void add_taps(const float* from, const float* w, Vec (&acc)[WIDTH][channel_block][places]) {
        for (int ky = 0; ky < KY; ky++, from += IN::row)
            for (int t = 0; t < taps; t++, w += channel_block * LANES) {
                Vec wv[channel_block];
                UNROLL for (int b = 0; b < channel_block; b++) wv[b] = load(w + b * LANES);
                UNROLL for (int x = 0; x < WIDTH; x++)
                    UNROLL for (int p = 0; p < places; p++) {
                        float value = from[window_offset(0, x) + place_offset(p) + t];
                        UNROLL for (int b = 0; b < channel_block; b++) acc[x][b][p] += value * wv[b];
                    }
            }
    }

    // One row of inputs, for the rows of outputs in the bit set ROWS: every weight and every input is loaded once.
    template <int WIDTH, int ROWS>
    static INLINE void add_row(const float* from, const float* w, int y, Vec (&acc)[WIDTH][channel_block][places]) {
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
        T lanes[LANES];
        store(lanes, value);
        constexpr int rest = outputs % LANES;
        std::memcpy(to, lanes, rest * sizeof(T));
    }

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

    void map_row(float* to, int32_t* place, int y, int v, int block) {
        const float* w = packed_ + block * map_block * inputs * KY * KX;
        const float* bias = packed_ + bias_at + block * map_block;
        Vec acc[map_block][places];
        UNROLL for (int o = 0; o < map_block; o++)
            UNROLL for (int p = 0; p < places; p++) acc[o][p] = broadcast(bias[o]);
        const float* rows = planar_ + y * POOL * SY * planar_row + v * LANES;
        for (int i = 0; i < inputs; i++, rows += padded_height * planar_row)
            for (int ky = 0; ky < KY; ky++) {
                const float* at = opaque(rows + ky * planar_row);
                UNROLL for (int kx = 0; kx < KX; kx++, w += map_block) {
                    Vec values[places];
                    UNROLL for (int p = 0; p < places; p++) {
                        int x = (p % POOL) * SX + kx;
                        int column = x % residues * planar_width + x / residues;
                        values[p] = load(at + (p / POOL) * SY * planar_row + column);
                    }
                    UNROLL for (int o = 0; o < map_block; o++)
                        UNROLL for (int p = 0; p < places; p++) acc[o][p] += w[o] * values[p];
                }
            }
        float best_lanes[map_block][LANES];
        int first = block * map_block, count = least(map_block, outputs - first);
        UNROLL for (int o = 0; o < map_block; o++) {
            Vec best;
            IntVec which;
            pool(acc[o], best, which);
            store(best_lanes[o], best);
            if (POOL > 1 && o < count) store(place + y * place_y + (first + o) * place_o + v * LANES, which);
        }
        for (int x = v * LANES; x < least(v * LANES + LANES, OUT::width); x++)
            for (int o = 0; o < count; o++) to[OUT::at(y, x) + first + o] = best_lanes[o][x - v * LANES];
    }

    // Backward reads the input as the rows of (kx, in) under the filter, one cell for each row and column: on whole
    // vectors, because loads and stores that straddle cache lines, or overlap by halves, cost several times as much.
    static constexpr bool WHOLE = inputs % LANES == 0;
    static constexpr int columns = OUT::width * POOL, cell = row_vecs * LANES;
    static constexpr int step = WHOLE ? SX * inputs : cell, line = WHOLE ? IN::row : columns * cell;
    static constexpr int cells_size = WHOLE ? 0 : padded_height * columns * cell;
    static constexpr int group_most = ACCUMULATORS / 2 - 1, group = ceil_div(vecs, ceil_div(vecs, group_most));
    static constexpr int band_bytes = 20 << 10, band_line = POOL * SY * line * 4;
    static constexpr int band = most(1, least(OUT::height, (band_bytes - KY * line * 4) / band_line));

    static constexpr int cell_offset(int p) { return (p / POOL) * SY * line + (p % POOL) * step; }

    template <bool DATA>
    void image_gradient(const float* w, int n, const float* g) {
        const float* from = WHOLE ? in + size_t(n) * IN::stride : static_cast<float*>(cells_);
        float* back = WHOLE ? grad + size_t(n) * IN::stride : static_cast<float*>(cell_grads_);
        const int32_t* place = place_ + size_t(n) * place_size;
        if (!WHOLE) cut(in + size_t(n) * IN::stride);
        if (DATA) std::memset(back, 0, (WHOLE ? IN::stride : cells_size) * sizeof(float));
        for (int y = 0; y < OUT::height; y += band)
            for (int o = 0; o < outputs; o++)
                filter_gradient<DATA>(from, back, w + o * filter, sums_ + o * filter, g + o, place + o * place_o, y);
        if (DATA && !WHOLE) join(grad + size_t(n) * IN::stride);
    }

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
    Buffer<int32_t> place_;
    Buffer<float> packed_, planar_;
};
